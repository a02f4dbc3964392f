// Deadlines by id, the earliest at hand.
//
// Threading: none. Cost: O(log n) a change; what is due is found without looking at what is not.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "evenkeel/core/clock.h"

namespace evenkeel {

template <class Id>
class DeadlineIndex {
 public:
  // kNever is a deadline too: known, and never due.
  void Set(const Id& id, TimePoint when) {
    auto [it, fresh] = by_id_.try_emplace(id, when);
    if (!fresh && it->second == when) return;
    if (!fresh) by_time_.erase({it->second, id});
    it->second = when;
    by_time_.emplace(when, id);
  }
  void Erase(const Id& id) {
    auto it = by_id_.find(id);
    if (it == by_id_.end()) return;
    by_time_.erase({it->second, id});
    by_id_.erase(it);
  }
  void Clear() {
    by_id_.clear();
    by_time_.clear();
  }
  void ShiftAll(Duration by) {
    by_time_.clear();
    for (auto& [id, when] : by_id_) {
      if (when != kNever) when += by;
      by_time_.emplace(when, id);
    }
  }

  bool Contains(const Id& id) const { return by_id_.contains(id); }
  // kNever for an unknown id.
  TimePoint Of(const Id& id) const {
    auto it = by_id_.find(id);
    return it == by_id_.end() ? kNever : it->second;
  }
  // kNever where there is none.
  TimePoint Next() const { return by_time_.empty() ? kNever : by_time_.begin()->first; }
  // Ids whose deadline is `now` or earlier, ascending.
  std::vector<Id> Due(TimePoint now) const {
    std::vector<Id> due;
    for (auto it = by_time_.begin(); it != by_time_.end() && it->first <= now; ++it) due.push_back(it->second);
    std::sort(due.begin(), due.end());
    return due;
  }

 private:
  std::map<Id, TimePoint> by_id_;
  std::set<std::pair<TimePoint, Id>> by_time_;
};

}  // namespace evenkeel
