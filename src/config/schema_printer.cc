#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "config/concat.h"
#include "config/schema.h"
#include "evenkeel/core/status.h"
#include "experiment.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace evenkeel::config_internal {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

json PrintAttribute(const config::Attribute& attribute) {
  switch (attribute.kind_case()) {
    case config::Attribute::kFlag:
      return attribute.flag();
    case config::Attribute::kInteger:
      return attribute.integer();
    case config::Attribute::kReal:
      return attribute.real();
    case config::Attribute::kText:
      return attribute.text();
    case config::Attribute::kIntegers:
      return std::vector<std::int64_t>(attribute.integers().values().begin(), attribute.integers().values().end());
    case config::Attribute::kReals:
      return std::vector<double>(attribute.reals().values().begin(), attribute.reals().values().end());
    case config::Attribute::kTexts:
      return std::vector<std::string>(attribute.texts().values().begin(), attribute.texts().values().end());
    case config::Attribute::KIND_NOT_SET:
      break;
  }
  return nullptr;
}

// A singular value for index -1, else an item of a list.
json PrintValue(const Message& message, const FieldDescriptor& field, int index) {
  const auto& reflection = *message.GetReflection();
  const bool item = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return item ? reflection.GetRepeatedBool(message, &field, index) : reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return item ? reflection.GetRepeatedInt64(message, &field, index) : reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return item ? reflection.GetRepeatedUInt64(message, &field, index) : reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return item ? reflection.GetRepeatedDouble(message, &field, index) : reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_STRING:
      return item ? reflection.GetRepeatedString(message, &field, index) : reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumName(item ? *reflection.GetRepeatedEnum(message, &field, index)
                           : *reflection.GetEnum(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return PrintMessage(item ? reflection.GetRepeatedMessage(message, &field, index)
                               : reflection.GetMessage(message, &field));
    default:
      EK_CHECK_MSG(false, Concat("the schema's ", field.full_name(), " has a type that no printer knows"));
  }
}

json PrintMap(const Message& message, const FieldDescriptor& field) {
  json out = json::object();
  const FieldDescriptor& key = *field.message_type()->map_key();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, &field, i);
    out[entry.GetReflection()->GetString(entry, &key)] = PrintValue(entry, *field.message_type()->map_value(), -1);
  }
  return out;
}

json PrintList(const Message& message, const FieldDescriptor& field) {
  json out = json::array();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    out.push_back(PrintValue(message, field, i));
  }
  return out;
}

}  // namespace

json PrintMessage(const Message& message) {
  if (const auto* attribute = dynamic_cast<const config::Attribute*>(&message)) return PrintAttribute(*attribute);
  json out = json::object();
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_map()) {
      out[field.name()] = PrintMap(message, field);
    } else if (field.is_repeated()) {
      out[field.name()] = PrintList(message, field);
    } else if (message.GetReflection()->HasField(message, &field)) {
      out[field.name()] = PrintValue(message, field, -1);
    }
  }
  return out;
}

std::string EnumName(const google::protobuf::EnumValueDescriptor& value) {
  // The prefix is the enum's name in upper snake case.
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  prefix += '_';
  EK_CHECK_MSG(value.name().compare(0, prefix.size(), prefix) == 0, value.full_name());
  return absl::AsciiStrToLower(value.name().substr(prefix.size()));
}

std::string EnumName(const Message& message, const FieldDescriptor& field) {
  return EnumName(*message.GetReflection()->GetEnum(message, &field));
}

std::string EnumName(const Message& message, std::string_view field) {
  const FieldDescriptor* found = message.GetDescriptor()->FindFieldByName(std::string(field));
  EK_CHECK_MSG(found != nullptr, std::string(field));
  return EnumName(message, *found);
}

}  // namespace evenkeel::config_internal
