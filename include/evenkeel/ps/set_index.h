// Which sets an update stands in, and where in their order.
//
// Threading: none; one caller at a time. Limits: the caller's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "evenkeel/core/ids.h"

namespace evenkeel::ps {

class SetIndex {
 public:
  void Add(SetNumber set, const std::vector<UpdateId>& updates) {
    std::int32_t position = 0;
    for (const UpdateId& update : updates) entries_.try_emplace({update, set}, position++);
  }
  void Remove(SetNumber set, const std::vector<UpdateId>& updates) {
    for (const UpdateId& update : updates) entries_.erase({update, set});
  }
  void Clear() { entries_.clear(); }
  // Ascending. One, but for orders that contradict each other.
  std::vector<SetNumber> Of(const UpdateId& update) const {
    std::vector<SetNumber> sets;
    for (auto it = entries_.lower_bound({update, SetNumber{}}); it != entries_.end() && it->first.first == update;
         ++it) {
      sets.push_back(it->first.second);
    }
    return sets;
  }
  // Of the newest set.
  struct Entry {
    SetNumber set;
    std::int32_t position = 0;
  };
  std::optional<Entry> NewestOf(const UpdateId& update) const {
    std::optional<Entry> newest;
    for (auto it = entries_.lower_bound({update, SetNumber{}}); it != entries_.end() && it->first.first == update;
         ++it) {
      newest = Entry{it->first.second, it->second};
    }
    return newest;
  }

 private:
  std::map<std::pair<UpdateId, SetNumber>, std::int32_t> entries_;
};

}  // namespace evenkeel::ps
