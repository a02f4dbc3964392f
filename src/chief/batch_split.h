// Cuts a total exactly into shares: by weight, or so that the largest predicted time is least.
//
// Threading: pure functions. Deterministic: ties go to the lower index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace evenkeel {

struct SplitBounds {
  std::int64_t floor = 0;    // of each share, where the total allows it for all
  std::int64_t ceiling = 0;  // 0: none; broken only when the total does not fit otherwise
};

// Shares in proportion to the weights (positive), rounded by largest remainder, ties to the lower index; their sum is
// exactly `total`. Shares below the floor are raised and the others take the rest, likewise above the ceiling. When the
// total is less than floor times the number of weights, the floor does not bind.
std::vector<std::int64_t> SplitBatch(std::int64_t total, std::span<const double> weights, SplitBounds bounds);

// What a share may be; both ends are allowed.
struct ShareRange {
  std::int64_t floor = 0;
  std::int64_t ceiling = 0;
};

// The same with a range for each share.
// Requires: as many ranges as weights, floor <= ceiling, sum of floors <= total <= sum of ceilings.
std::vector<std::int64_t> SplitBatch(std::int64_t total, std::span<const double> weights,
                                     std::span<const ShareRange> ranges);

// Seconds that a batch of b takes: fixed + per_sample·b.
struct StepTimeLine {
  double fixed = 0;
  double per_sample = 0;
  double At(double batch) const { return fixed + per_sample * batch; }
};

// The shares in their ranges that sum to exactly `total` and minimise the largest line[i].At(share[i]): an exact
// optimum over integers, in a few tens of passes. It keeps its memory: the next call allocates nothing.
// Threading: one caller at a time.
class MinMaxSplitter {
 public:
  // Valid until the next call.
  // Requires: as many ranges as lines, per_sample > 0, fixed >= 0, floor <= ceiling,
  //           sum of floors <= total <= sum of ceilings.
  const std::vector<std::int64_t>& Split(std::int64_t total, std::span<const StepTimeLine> lines,
                                         std::span<const ShareRange> ranges);

 private:
  struct Next {
    double seconds;  // once it has one sample more
    std::size_t index;
    bool operator>(const Next& other) const {
      return seconds != other.seconds ? seconds > other.seconds : index > other.index;
    }
  };
  struct Fill {  // of one share, as doubles: what it is at a time
    double fixed, rate, floor, ceiling;
    double Share(double seconds) const;
  };

  std::int64_t Sum(double seconds) const;
  void Narrow(std::int64_t total, double& low, double& high) const;

  std::vector<Fill> fills_;
  std::vector<Next> queue_;
  std::vector<std::int64_t> shares_;
};

// The same, once.
std::vector<std::int64_t> MinMaxSplit(std::int64_t total, std::span<const StepTimeLine> lines,
                                      std::span<const ShareRange> ranges);

}  // namespace evenkeel
