#include "evenkeel/core/ranges.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace evenkeel {

std::string ToString(const RangeList& ranges) {
  return absl::StrJoin(ranges, " ", [](std::string* out, const PositionRange& range) {
    absl::StrAppend(out, "[", range.begin, ",", range.end, ")");
  });
}

}  // namespace evenkeel
