// JSON text in, and values as people read them in error messages.
//
// Threading: none. Errors: kInvalidArgument.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace evenkeel::config_internal {

// The largest experiment or cluster file that is read.
constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;

// Errors: "not JSON: line 3, column 5: ..."; "train.seed: the key appears twice".
absl::Status ParseJson(std::string_view text, nlohmann::json& out);

// Compact, at most about 60 bytes; strings in single quotes.
std::string ShowValue(const nlohmann::json& value);
// "a string", "a whole number", "a list".
std::string ShowType(const nlohmann::json& value);

// "train" and "seed" give "train.seed"; "" and "train" give "train".
std::string FieldPath(std::string_view parent, std::string_view field);
std::string ItemPath(std::string_view list, std::size_t index);  // "model.layers[2]"

// ", did you mean 'conv2d'?", or nothing when no name is near.
std::string NearestHint(std::string_view name, std::span<const std::string> names);

}  // namespace evenkeel::config_internal
