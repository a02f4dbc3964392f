// A set of numbers as merged half-open intervals: small where most numbers are in it.
//
// Threading: none.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace evenkeel::sim {

class NumberSet {
 public:
  bool Contains(std::uint64_t number) const {
    auto after = by_begin_.upper_bound(number);
    return after != by_begin_.begin() && std::prev(after)->second > number;
  }
  // False when it is there already.
  bool Insert(std::uint64_t number) {
    if (Contains(number)) return false;
    std::uint64_t end = number + 1;
    auto after = by_begin_.upper_bound(number);
    if (after != by_begin_.end() && after->first == end) {
      end = after->second;
      after = by_begin_.erase(after);
    }
    if (after != by_begin_.begin() && std::prev(after)->second == number) {
      std::prev(after)->second = end;
    } else {
      by_begin_.emplace_hint(after, number, end);
    }
    return true;
  }
  void Clear() { by_begin_.clear(); }

 private:
  std::map<std::uint64_t, std::uint64_t> by_begin_;  // begin -> end
};

}  // namespace evenkeel::sim
