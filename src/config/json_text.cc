#include "config/json_text.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "config/concat.h"
#include "nlohmann/json.hpp"

namespace evenkeel::config_internal {
namespace {

using nlohmann::json;

// Follows the parser through the text and remembers where a key came twice; the parser itself keeps the last silently.
class DuplicateKeys {
 public:
  bool OnEvent(json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        frames_.push_back({});
        frames_.back().is_list = event == json::parse_event_t::array_start;
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        frames_.pop_back();
        FinishItem();
        break;
      case json::parse_event_t::value:
        FinishItem();
        break;
      case json::parse_event_t::key:
        frames_.back().key = parsed.get<std::string>();
        if (!frames_.back().keys.insert(frames_.back().key).second && first_.empty()) first_ = Path();
        break;
    }
    return true;
  }
  const std::string& first() const { return first_; }

 private:
  struct Frame {
    bool is_list = false;
    std::size_t index = 0;
    std::string key;
    std::set<std::string> keys;
  };

  void FinishItem() {
    if (!frames_.empty() && frames_.back().is_list) ++frames_.back().index;
  }
  std::string Path() const {
    std::string path;
    for (const Frame& frame : frames_) path = frame.is_list ? ItemPath(path, frame.index) : FieldPath(path, frame.key);
    return path;
  }

  std::vector<Frame> frames_;
  std::string first_;
};

// The library's "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without its own name.
std::string SyntaxError(std::string_view what) {
  if (const auto end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
  constexpr std::string_view kPrefix = "parse error at ";
  if (what.substr(0, kPrefix.size()) == kPrefix) what.remove_prefix(kPrefix.size());
  return std::string(what);
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

absl::Status ParseJson(std::string_view text, json& out) {
  if (absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())).empty()) {
    return absl::InvalidArgumentError("not JSON: the text is empty");
  }
  DuplicateKeys duplicates;
  try {
    out = json::parse(text,
                      [&](int, json::parse_event_t event, json& parsed) { return duplicates.OnEvent(event, parsed); });
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(Concat("not JSON: ", SyntaxError(error.what())));
  }
  if (!duplicates.first().empty()) {
    return absl::InvalidArgumentError(Concat(duplicates.first(), ": the key appears twice"));
  }
  return absl::OkStatus();
}

std::string ShowValue(const json& value) {
  constexpr std::size_t kLimit = 60;
  std::string text = value.is_string() ? Concat("'", value.get_ref<const std::string&>(), "'")
                                       : value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLimit) text = Concat(text.substr(0, kLimit), "...");
  return text;
}

std::string ShowType(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      return "a number";
    default:
      return "no JSON value";
  }
}

std::string FieldPath(std::string_view parent, std::string_view field) {
  return parent.empty() ? std::string(field) : Concat(parent, ".", field);
}

std::string ItemPath(std::string_view list, std::size_t index) { return Concat(list, "[", index, "]"); }

std::string NearestHint(std::string_view name, std::span<const std::string> names) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
  std::size_t best = (lower.size() < 4 ? 1 : std::max<std::size_t>(2, lower.size() / 3)) + 1;
  const std::string* nearest = nullptr;
  for (const std::string& candidate : names) {
    const std::size_t distance = EditDistance(lower, candidate);
    if (distance < best) {
      best = distance;
      nearest = &candidate;
    }
  }
  return nearest == nullptr ? "" : Concat(", did you mean '", *nearest, "'?");
}

}  // namespace evenkeel::config_internal
