#include "config/overrides.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "config/concat.h"
#include "config/json_text.h"
#include "evenkeel/core/status.h"
#include "nlohmann/json.hpp"

namespace evenkeel::config_internal {
namespace {

using nlohmann::json;

// A field, and then the items of lists within it: "layers[2]".
struct Step {
  std::string field;
  std::vector<std::size_t> indices;
};

absl::Status Refused(std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError(Concat("--set ", text, ": ", what));
}

std::optional<Step> ParseStep(std::string_view part) {
  Step step;
  const std::size_t bracket = part.find('[');
  step.field = std::string(part.substr(0, bracket));
  if (step.field.empty() || step.field.find(']') != std::string::npos) return std::nullopt;
  for (std::size_t at = bracket; at != part.npos && at < part.size();) {
    const std::size_t close = part.find(']', at);
    if (part[at] != '[' || close == part.npos) return std::nullopt;
    std::uint32_t index = 0;
    const std::string digits(part.substr(at + 1, close - at - 1));
    if (!absl::SimpleAtoi(digits, &index)) return std::nullopt;
    step.indices.push_back(index);
    at = close + 1;
  }
  return step;
}

absl::StatusOr<std::vector<Step>> ParsePath(std::string_view text, std::string_view path) {
  constexpr std::string_view kForm = "expected PATH=VALUE, for example train.sync.mode=asp or model.layers[0].name=a";
  std::vector<Step> steps;
  for (std::size_t start = 0; start <= path.size();) {
    std::size_t end = path.find('.', start);
    if (end == path.npos) end = path.size();
    std::optional<Step> step = ParseStep(path.substr(start, end - start));
    if (!step) return Refused(text, Concat("'", path, "' is no path; ", kForm));
    steps.push_back(*std::move(step));
    start = end + 1;
  }
  return steps;
}

json ParseValue(std::string_view text) {
  json value;
  return ParseJson(text, value).ok() ? value : json(std::string(text));
}

}  // namespace

absl::Status ApplyOverride(std::string_view text, json& document) {
  const std::size_t equals = text.find('=');
  if (equals == text.npos) return Refused(text, "expected PATH=VALUE, for example train.sync.mode=asp");
  EK_ASSIGN_OR_RETURN(const std::vector<Step> steps, ParsePath(text, text.substr(0, equals)));

  json* target = &document;
  std::string path;
  for (const Step& step : steps) {
    if (target->is_null()) *target = json::object();
    if (!target->is_object()) {
      return Refused(text, Concat(path, " is ", ShowType(*target), "; it has no field '", step.field, "'"));
    }
    target = &(*target)[step.field];
    path = FieldPath(path, step.field);
    for (const std::size_t index : step.indices) {
      if (!target->is_array()) {
        return Refused(text, Concat(path, " is ", ShowType(*target), "; it has no item ", index));
      }
      if (index >= target->size()) {
        return Refused(text,
                       Concat(path, ": index ", index, " is out of range; the list has ", target->size(), " items"));
      }
      target = &(*target)[index];
      path = ItemPath(path, index);
    }
  }
  *target = ParseValue(text.substr(equals + 1));
  return absl::OkStatus();
}

}  // namespace evenkeel::config_internal
