// How long this machine takes for a small batch of the job's own model: what a joining worker tells the chief, so that
// its first batch fits already.
//
// Threading: the step loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"

namespace evenkeel {

struct SelfTiming {
  double fixed_seconds = 0;
  double seconds_per_sample = 0;  // 0: not timed
};

// Runs steps of two sizes, `small` and `large` samples, in turn, for about `time`, or half of it where steps of a size
// are alike: each once for nothing, so that memory and kernels are there, then until the time is over or both have had
// many turns. A size that cannot have its turn in time counts by what was seen of it. `step` trains on so many samples;
// `stop` asks between steps, and true ends it untimed. Requires 0 < small <= large. Errors: those of `step`.
absl::StatusOr<SelfTiming> TimeSteps(const std::function<absl::Status(std::int64_t)>& step, std::int64_t small,
                                     std::int64_t large, Duration time, const Clock& clock,
                                     const std::function<bool()>& stop);

// Which batch sizes a model has trained on lately; bounded.
class BatchSizesSeen {
 public:
  // True where `size` is new, or was so long ago that its kernels may be gone.
  bool Add(std::int64_t size);

 private:
  std::vector<std::int64_t> sizes_;  // newest first
};

}  // namespace evenkeel
