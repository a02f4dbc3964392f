// A set of integers as ascending, disjoint, merged half-open intervals.
//
// Threading: none. Cost: O(log n) an interval touched, n intervals held.
#pragma once

#include <cstdint>
#include <map>

#include "evenkeel/core/ranges.h"

namespace evenkeel {

class IntervalSet {
 public:
  IntervalSet() = default;
  explicit IntervalSet(const RangeList& ranges) { Add(ranges); }

  // Requires that nothing of it is in the set.
  void Add(PositionRange range);
  void Add(const RangeList& ranges);
  // Requires that all of it is in the set.
  void Remove(PositionRange range);
  void Remove(const RangeList& ranges);
  bool Contains(PositionRange range) const;
  bool Overlaps(PositionRange range) const;
  // Removes and returns the `count` lowest, or fewer where fewer are there.
  RangeList TakeLowest(std::int64_t count);

  std::int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  RangeList ranges() const;

 private:
  std::map<std::int64_t, std::int64_t> by_begin_;  // begin -> end
  std::int64_t size_ = 0;
};

}  // namespace evenkeel
