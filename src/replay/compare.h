// A checkpoint beside what was recomputed.
//
// Threading: none.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/ps/shard.h"
#include "evenkeel/replay/replay.h"

namespace evenkeel::replay {

struct Compared {
  CheckpointComparison comparison;
  // A sentence for each array that differs: where first, by how much.
  std::vector<std::string> differences;
};

// `shard` holds all parameters at the checkpoint's version. With `bits` each bit is to be the same, else the relative
// difference is to be at most `tolerance`. Errors: kDataLoss, kNotFound (removed meanwhile).
absl::StatusOr<Compared> CompareWithCheckpoint(const CheckpointReader& reader, const ps::Shard& shard, bool bits,
                                               double tolerance);

}  // namespace evenkeel::replay
