// Which sets an update stands in.
//
// Threading: none; one caller at a time. Limits: the caller's.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "evenkeel/core/ids.h"

namespace evenkeel::ps {

class SetIndex {
 public:
  void Add(SetNumber set, const std::vector<UpdateId>& updates) {
    for (const UpdateId& update : updates) entries_.emplace(update, set);
  }
  void Remove(SetNumber set, const std::vector<UpdateId>& updates) {
    for (const UpdateId& update : updates) entries_.erase({update, set});
  }
  void Clear() { entries_.clear(); }
  // Ascending. One, but for orders that contradict each other.
  std::vector<SetNumber> Of(const UpdateId& update) const {
    std::vector<SetNumber> sets;
    for (auto it = entries_.lower_bound({update, SetNumber{}}); it != entries_.end() && it->first == update; ++it) {
      sets.push_back(it->second);
    }
    return sets;
  }

 private:
  std::set<std::pair<UpdateId, SetNumber>> entries_;
};

}  // namespace evenkeel::ps
