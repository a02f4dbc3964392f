// Between JSON and a message of a schema that carries the rules of proto/schema_rules.proto.
//
// Threading: none. Errors: kInvalidArgument, "PATH: the offending value and what is allowed".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace google::protobuf {
class EnumValueDescriptor;
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace evenkeel::config_internal {

// Reads `value` into the empty message `out`, checks the rules and fills the defaults. `path` is the value's own.
absl::Status ReadMessage(const nlohmann::json& value, std::string_view path, google::protobuf::Message& out);

// Every field that is there, in JSON that ReadMessage reads back. Numbers of double fields are written with a fraction.
nlohmann::json PrintMessage(const google::protobuf::Message& message);

// An enum value as JSON has it: MODE_BSP of enum Mode is "bsp".
std::string EnumName(const google::protobuf::EnumValueDescriptor& value);
// The value of a singular enum field as JSON has it.
std::string EnumName(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);
// The same, by the field's name.
std::string EnumName(const google::protobuf::Message& message, std::string_view field);

}  // namespace evenkeel::config_internal
