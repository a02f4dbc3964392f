// Which positions of which epoch are committed, one bit each; an epoch that is complete needs none any more.
//
// Threading: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "evenkeel/core/ids.h"
#include "evenkeel/core/ranges.h"

namespace evenkeel::sim {

class SpentSamples {
 public:
  explicit SpentSamples(std::int64_t samples) : samples_(samples) {}

  // Nothing, or the first position that was spent before or does not exist; what lies behind it is not spent then.
  std::optional<std::int64_t> Spend(Epoch epoch, const RangeList& positions) {
    const std::size_t index = epoch.value();
    if (epochs_.size() <= index) epochs_.resize(index + 1);
    OneEpoch& one = epochs_[index];
    for (const PositionRange& range : positions) {
      for (std::int64_t at = range.begin; at < range.end; ++at) {
        if (at < 0 || at >= samples_ || one.count == samples_) return at;
        if (one.spent.empty()) one.spent.resize(static_cast<std::size_t>(samples_));
        if (one.spent[static_cast<std::size_t>(at)]) return at;
        one.spent[static_cast<std::size_t>(at)] = true;
        if (++one.count == samples_) one.spent = {};
      }
    }
    return std::nullopt;
  }
  std::int64_t Count(std::int64_t epoch) const {
    const auto index = static_cast<std::size_t>(epoch);
    return index < epochs_.size() ? epochs_[index].count : 0;
  }

 private:
  struct OneEpoch {
    std::int64_t count = 0;
    std::vector<bool> spent;  // empty: none, or all
  };
  std::int64_t samples_;
  std::vector<OneEpoch> epochs_;
};

}  // namespace evenkeel::sim
