#include "evenkeel/core/ranges.h"

#include "absl/strings/str_cat.h"

namespace evenkeel {

std::string ToString(const RangeList& ranges) {
  std::string text;
  for (const PositionRange& range : ranges) {
    absl::StrAppend(&text, text.empty() ? "[" : " [", range.begin, ",", range.end, ")");
  }
  return text;
}

}  // namespace evenkeel
