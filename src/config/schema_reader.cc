#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "config/concat.h"
#include "config/json_text.h"
#include "config/schema.h"
#include "evenkeel/core/status.h"
#include "experiment.pb.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"
#include "schema_rules.pb.h"

namespace evenkeel::config_internal {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using nlohmann::json;

absl::Status Invalid(std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(path.empty() ? std::string(what) : Concat(path, ": ", what));
}

absl::Status WrongType(std::string_view path, const json& value, std::string_view expected) {
  return Invalid(path, Concat(ShowValue(value), " is ", ShowType(value), "; expected ", expected));
}

const config::FieldRule& RuleOf(const FieldDescriptor& field) { return field.options().GetExtension(config::rule); }

// "at least 0 and below 1".
std::string ShowRange(const config::FieldRule& rule) {
  std::vector<std::string> parts;
  if (rule.has_min()) parts.push_back(Concat("at least ", json(rule.min()).dump()));
  if (rule.has_above()) parts.push_back(Concat("above ", json(rule.above()).dump()));
  if (rule.has_max()) parts.push_back(Concat("at most ", json(rule.max()).dump()));
  if (rule.has_below()) parts.push_back(Concat("below ", json(rule.below()).dump()));
  std::string text = absl::StrJoin(parts, " and ");
  // Bounds are doubles; 1.0 reads better as 1.
  for (std::size_t at = text.find(".0"); at != text.npos; at = text.find(".0", at + 1)) {
    if (at + 2 == text.size() || text[at + 2] == ' ') text.erase(at, 2);
  }
  return text;
}

absl::Status CheckRange(const config::FieldRule& rule, double number, std::string_view path, const json& value) {
  const bool inside = (!rule.has_min() || number >= rule.min()) && (!rule.has_max() || number <= rule.max()) &&
                      (!rule.has_above() || number > rule.above()) && (!rule.has_below() || number < rule.below());
  if (inside) return absl::OkStatus();
  return Invalid(path, Concat(ShowValue(value), " is out of range; allowed: ", ShowRange(rule)));
}

// A whole number, also written 1e3 or 5.0.
absl::StatusOr<std::int64_t> ReadInt64(const json& value, std::string_view path) {
  if (!value.is_number()) return WrongType(path, value, "a whole number");
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Invalid(path, Concat(number, " is too large for a 64-bit number"));
    }
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  const double number = value.get<double>();
  constexpr double kExact = 9007199254740992.0;  // beyond 2^53 a double is no exact whole number
  if (std::trunc(number) != number || std::fabs(number) > kExact) {
    return Invalid(path, Concat(ShowValue(value), " is not a whole number"));
  }
  return static_cast<std::int64_t>(number);
}

absl::StatusOr<std::uint64_t> ReadUint64(const json& value, std::string_view path) {
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  EK_ASSIGN_OR_RETURN(const std::int64_t number, ReadInt64(value, path));
  if (number < 0) return Invalid(path, Concat(number, " is out of range; allowed: at least 0"));
  return static_cast<std::uint64_t>(number);
}

absl::StatusOr<int> ReadEnum(const EnumDescriptor& type, const json& value, std::string_view path) {
  std::vector<std::string> names;
  for (int i = 1; i < type.value_count(); ++i) names.push_back(EnumName(*type.value(i)));  // 0 is UNSPECIFIED
  const std::string allowed = absl::StrJoin(names, ", ");
  if (!value.is_string()) return WrongType(path, value, Concat("one of ", allowed));
  const auto& text = value.get_ref<const std::string&>();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return type.value(static_cast<int>(i) + 1)->number();
  }
  return Invalid(path, Concat(ShowValue(value), " is not one of ", allowed, NearestHint(text, names)));
}

// One value, set or appended.
absl::Status ReadScalar(const json& value, const FieldDescriptor& field, std::string_view path, Message& out) {
  const auto& reflection = *out.GetReflection();
  const config::FieldRule& rule = RuleOf(field);
  const bool append = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!value.is_boolean()) return WrongType(path, value, "true or false");
      append ? reflection.AddBool(&out, &field, value.get<bool>())
             : reflection.SetBool(&out, &field, value.get<bool>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT64: {
      EK_ASSIGN_OR_RETURN(const std::int64_t number, ReadInt64(value, path));
      EK_RETURN_IF_ERROR(CheckRange(rule, static_cast<double>(number), path, value));
      append ? reflection.AddInt64(&out, &field, number) : reflection.SetInt64(&out, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      EK_ASSIGN_OR_RETURN(const std::uint64_t number, ReadUint64(value, path));
      EK_RETURN_IF_ERROR(CheckRange(rule, static_cast<double>(number), path, value));
      append ? reflection.AddUInt64(&out, &field, number) : reflection.SetUInt64(&out, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      if (!value.is_number()) return WrongType(path, value, "a number");
      const double number = value.get<double>() + 0.0;  // -0 becomes 0
      EK_RETURN_IF_ERROR(CheckRange(rule, number, path, value));
      append ? reflection.AddDouble(&out, &field, number) : reflection.SetDouble(&out, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      if (!value.is_string()) return WrongType(path, value, "a string");
      const auto& text = value.get_ref<const std::string&>();
      if (rule.not_empty() && text.empty()) return Invalid(path, "may not be empty");
      append ? reflection.AddString(&out, &field, text) : reflection.SetString(&out, &field, text);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      EK_ASSIGN_OR_RETURN(const int number, ReadEnum(*field.enum_type(), value, path));
      append ? reflection.AddEnumValue(&out, &field, number) : reflection.SetEnumValue(&out, &field, number);
      return absl::OkStatus();
    }
    default:
      EK_CHECK_MSG(false, Concat("the schema's ", field.full_name(), " has a type that no reader knows"));
  }
}

absl::Status ReadAttributeList(const json& value, std::string_view path, config::Attribute& out) {
  const bool texts = !value.empty() && value.front().is_string();
  bool fractions = false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (texts ? !value[i].is_string() : !value[i].is_number()) {
      return WrongType(ItemPath(path, i), value[i],
                       texts ? "a string, as the list's first" : "a number; a list holds numbers or strings");
    }
    fractions = fractions || value[i].is_number_float();
  }
  if (texts) {
    for (const json& item : value) out.mutable_texts()->add_values(item.get<std::string>());
  } else if (fractions) {
    for (const json& item : value) out.mutable_reals()->add_values(item.get<double>() + 0.0);
  } else {
    out.mutable_integers();
    for (std::size_t i = 0; i < value.size(); ++i) {
      EK_ASSIGN_OR_RETURN(const std::int64_t number, ReadInt64(value[i], ItemPath(path, i)));
      out.mutable_integers()->add_values(number);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAttribute(const json& value, std::string_view path, config::Attribute& out) {
  if (value.is_boolean()) {
    out.set_flag(value.get<bool>());
  } else if (value.is_number_float()) {
    out.set_real(value.get<double>() + 0.0);
  } else if (value.is_number()) {
    EK_ASSIGN_OR_RETURN(const std::int64_t number, ReadInt64(value, path));
    out.set_integer(number);
  } else if (value.is_string()) {
    out.set_text(value.get<std::string>());
  } else if (value.is_array()) {
    return ReadAttributeList(value, path, out);
  } else {
    return WrongType(path, value, "a boolean, a number, a string, or a list of numbers or strings");
  }
  return absl::OkStatus();
}

absl::Status ReadMap(const json& value, const FieldDescriptor& field, std::string_view path, Message& out) {
  if (!value.is_object()) return WrongType(path, value, "an object");
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& mapped = *field.message_type()->map_value();
  for (const auto& [name, item] : value.items()) {
    if (item.is_null()) continue;
    Message* entry = out.GetReflection()->AddMessage(&out, &field);
    entry->GetReflection()->SetString(entry, &key, name);
    EK_RETURN_IF_ERROR(
        ReadMessage(item, FieldPath(path, name), *entry->GetReflection()->MutableMessage(entry, &mapped)));
  }
  return absl::OkStatus();
}

absl::Status CheckLength(const config::FieldRule& rule, std::string_view path, std::size_t length) {
  if (rule.has_expand() && length != 1 && length != rule.expand()) {
    return Invalid(path, Concat(length, " values; expected one, or ", rule.expand()));
  }
  if (rule.has_min_items() && length < rule.min_items()) {
    return Invalid(path, Concat(length, " values; expected at least ", rule.min_items()));
  }
  if (rule.has_max_items() && length > rule.max_items()) {
    return Invalid(path, Concat(length, " values; expected at most ", rule.max_items()));
  }
  return absl::OkStatus();
}

absl::Status ReadList(const json& value, const FieldDescriptor& field, std::string_view path, Message& out) {
  const config::FieldRule& rule = RuleOf(field);
  const bool bare = !value.is_array();
  if (bare && !rule.single() && !rule.has_expand()) return WrongType(path, value, "a list");
  EK_RETURN_IF_ERROR(CheckLength(rule, path, bare ? 1 : value.size()));
  const std::size_t length = rule.has_expand() ? rule.expand() : bare ? 1 : value.size();
  for (std::size_t i = 0; i < length; ++i) {
    const std::size_t source = bare || value.size() == 1 ? 0 : i;
    const json& item = bare ? value : value[source];
    const std::string item_path = bare ? std::string(path) : ItemPath(path, source);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      EK_RETURN_IF_ERROR(ReadMessage(item, item_path, *out.GetReflection()->AddMessage(&out, &field)));
    } else {
      EK_RETURN_IF_ERROR(ReadScalar(item, field, item_path, out));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadField(const json& value, const FieldDescriptor& field, std::string_view path, Message& out) {
  if (field.is_map()) return ReadMap(value, field, path, out);
  if (field.is_repeated()) return ReadList(value, field, path, out);
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return ReadScalar(value, field, path, out);
  Message& child = *out.GetReflection()->MutableMessage(&out, &field);
  const config::FieldRule& rule = RuleOf(field);
  if (rule.has_shorthand() && value.is_string()) return ReadMessage(json{{rule.shorthand(), value}}, path, child);
  return ReadMessage(value, path, child);
}

bool IsPresent(const Message& message, const FieldDescriptor& field) {
  return field.is_repeated() ? message.GetReflection()->FieldSize(message, &field) > 0
                             : message.GetReflection()->HasField(message, &field);
}

// The path of a field of this name in one of the sections of `type`, "train.global_batch_size"; empty: there is none.
std::string PathOf(std::string_view name, const Descriptor& type, std::string_view path = "") {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string field_path = FieldPath(path, field.name());
    if (field.name() == name) return field_path;
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_repeated()) continue;
    if (std::string found = PathOf(name, *field.message_type(), field_path); !found.empty()) return found;
  }
  return "";
}

absl::Status ReadPresent(const json& value, std::string_view path, Message& out) {
  const Descriptor& type = *out.GetDescriptor();
  std::map<const OneofDescriptor*, std::string> chosen;
  for (const auto& [name, item] : value.items()) {
    const FieldDescriptor* field = type.FindFieldByName(name);
    if (field == nullptr) {
      std::vector<std::string> names;
      for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
      const std::string elsewhere = PathOf(name, *config::Experiment::descriptor());
      return Invalid(FieldPath(path, name),
                     Concat("unknown field",
                            elsewhere.empty() ? NearestHint(name, names) : Concat(", did you mean '", elsewhere, "'?"),
                            names.empty() ? "; there are none here" : "; allowed: ", absl::StrJoin(names, ", ")));
    }
    if (item.is_null()) continue;
    if (const OneofDescriptor* oneof = field->real_containing_oneof(); oneof != nullptr) {
      const auto [other, first] = chosen.emplace(oneof, name);
      if (!first) {
        return Invalid(path, Concat("'", other->second, "' and '", name, "' exclude each other; give one"));
      }
    }
    EK_RETURN_IF_ERROR(ReadField(item, *field, FieldPath(path, name), out));
  }
  return absl::OkStatus();
}

absl::Status FillOneof(const OneofDescriptor& oneof, std::string_view path, Message& out) {
  if (out.GetReflection()->HasOneof(out, &oneof)) return absl::OkStatus();
  const config::OneofRule& choice = oneof.options().GetExtension(config::choice);
  if (choice.has_default_member()) {
    const FieldDescriptor* field = out.GetDescriptor()->FindFieldByName(choice.default_member());
    return ReadField(json::object(), *field, FieldPath(path, field->name()), out);
  }
  if (!choice.required()) return absl::OkStatus();
  std::vector<std::string> names;
  for (int i = 0; i < oneof.field_count(); ++i) names.push_back(oneof.field(i)->name());
  return Invalid(path, Concat("one of these is required: ", absl::StrJoin(names, ", ")));
}

absl::Status FillAbsent(const json& value, std::string_view path, Message& out) {
  const Descriptor& type = *out.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.real_containing_oneof() != nullptr || IsPresent(out, field)) continue;
    const auto written = value.find(field.name());
    if (written != value.end() && !written->is_null()) continue;  // an empty list
    const config::FieldRule& rule = RuleOf(field);
    const std::string field_path = FieldPath(path, field.name());
    if (rule.required()) return Invalid(field_path, "is required");
    if (rule.has_default_value()) {
      EK_RETURN_IF_ERROR(ReadField(json::parse(rule.default_value()), field, field_path, out));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated() && !rule.may_be_absent()) {
      EK_RETURN_IF_ERROR(ReadField(json::object(), field, field_path, out));
    }
  }
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
    EK_RETURN_IF_ERROR(FillOneof(*type.oneof_decl(i), path, out));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMessage(const json& value, std::string_view path, Message& out) {
  if (auto* attribute = dynamic_cast<config::Attribute*>(&out)) return ReadAttribute(value, path, *attribute);
  if (!value.is_object()) return WrongType(path, value, "an object");
  EK_RETURN_IF_ERROR(ReadPresent(value, path, out));
  return FillAbsent(value, path, out);
}

}  // namespace evenkeel::config_internal
