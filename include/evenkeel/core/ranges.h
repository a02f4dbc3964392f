// Half-open intervals of positions in an epoch's permutation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace evenkeel {

struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  friend constexpr auto operator<=>(const PositionRange&, const PositionRange&) = default;
};

// Ascending, disjoint, none empty, neighbours merged.
using RangeList = std::vector<PositionRange>;

inline std::int64_t TotalSize(const RangeList& ranges) {
  std::int64_t total = 0;
  for (const PositionRange& range : ranges) total += range.size();
  return total;
}

std::string ToString(const RangeList& ranges);  // "[0,128) [256,300)"

}  // namespace evenkeel
