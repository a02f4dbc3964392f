// --set PATH=VALUE on an experiment's JSON.
//
// Threading: none. Errors: kInvalidArgument, "--set TEXT: what is wrong".
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace evenkeel::config_internal {

// Sets the value at a path like "model.layers[2].dropout.rate", making objects on the way. A value that is no JSON is a
// string. Fields that the schema lacks are left for the reader to refuse.
absl::Status ApplyOverride(std::string_view text, nlohmann::json& document);

}  // namespace evenkeel::config_internal
