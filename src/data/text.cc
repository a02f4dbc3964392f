#include "data/text.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace evenkeel::data {

Number ParseNumber(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  // from_chars knows no plus sign; "+-1" must stay wrong.
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  Number number;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number.value);
  if (error == std::errc::invalid_argument || stop != end) return {};
  // Out of range is said of both ends; strtod gives 0 (or a denormal) at the small one.
  if (error == std::errc::result_out_of_range) number.value = std::strtod(std::string(text).c_str(), nullptr);
  bool fits = std::isfinite(number.value) && std::abs(number.value) <= std::numeric_limits<float>::max();
  number.kind = fits ? NumberKind::kFinite : NumberKind::kNotFinite;
  return number;
}

bool ParseIndex(absl::string_view text, std::int64_t* value) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && *value >= 0;
}

std::string Quoted(absl::string_view text) {
  constexpr std::size_t kLongest = 40;
  if (text.size() <= kLongest) return absl::StrCat("'", text, "'");
  return absl::StrCat("'", text.substr(0, kLongest), "...'");
}

bool LineReader::Next(absl::string_view* line) {
  if (rest_.empty()) return false;
  ++line_number_;
  std::size_t end = rest_.find('\n');
  *line = rest_.substr(0, end);
  rest_.remove_prefix(end == absl::string_view::npos ? rest_.size() : end + 1);
  if (!line->empty() && line->back() == '\r') line->remove_suffix(1);
  return true;
}

}  // namespace evenkeel::data
