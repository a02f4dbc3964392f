#include "chief/interval_set.h"

#include <algorithm>

#include "evenkeel/core/status.h"

namespace evenkeel {

bool IntervalSet::Overlaps(PositionRange range) const {
  auto after = by_begin_.lower_bound(range.begin);
  if (after != by_begin_.end() && after->first < range.end) return true;
  return after != by_begin_.begin() && std::prev(after)->second > range.begin;
}

bool IntervalSet::Contains(PositionRange range) const {
  auto after = by_begin_.upper_bound(range.begin);
  return after != by_begin_.begin() && std::prev(after)->second >= range.end;
}

void IntervalSet::Add(PositionRange range) {
  if (range.size() <= 0) return;
  EK_CHECK_MSG(!Overlaps(range), ToString(RangeList{range}));
  size_ += range.size();
  auto after = by_begin_.lower_bound(range.begin);
  if (after != by_begin_.end() && after->first == range.end) {
    range.end = after->second;
    after = by_begin_.erase(after);
  }
  if (after != by_begin_.begin()) {
    auto before = std::prev(after);
    if (before->second == range.begin) {
      before->second = range.end;
      return;
    }
  }
  by_begin_.emplace_hint(after, range.begin, range.end);
}

void IntervalSet::Add(const RangeList& ranges) {
  for (const PositionRange& range : ranges) Add(range);
}

void IntervalSet::Remove(PositionRange range) {
  if (range.size() <= 0) return;
  EK_CHECK_MSG(Contains(range), ToString(RangeList{range}));
  auto holder = std::prev(by_begin_.upper_bound(range.begin));
  const PositionRange whole{holder->first, holder->second};
  size_ -= range.size();
  by_begin_.erase(holder);
  if (whole.begin < range.begin) by_begin_.emplace(whole.begin, range.begin);
  if (range.end < whole.end) by_begin_.emplace(range.end, whole.end);
}

void IntervalSet::Remove(const RangeList& ranges) {
  for (const PositionRange& range : ranges) Remove(range);
}

RangeList IntervalSet::TakeLowest(std::int64_t count) {
  RangeList taken;
  while (count > 0 && !by_begin_.empty()) {
    const auto [begin, end] = *by_begin_.begin();
    const PositionRange range{begin, std::min(end, begin + count)};
    Remove(range);
    taken.push_back(range);
    count -= range.size();
  }
  return taken;
}

RangeList IntervalSet::ranges() const {
  RangeList list;
  list.reserve(by_begin_.size());
  for (const auto& [begin, end] : by_begin_) list.push_back({begin, end});
  return list;
}

}  // namespace evenkeel
