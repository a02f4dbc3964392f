// Where a manifest's tensors lie in the flat vector: in the manifest's order, each at the next multiple of 16 floats
// (64 bytes); statistics after all others, from parameter_floats on.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/checkpoint/checkpoint.h"

namespace evenkeel {

struct FlatPlace {
  std::int64_t begin = 0;
  std::int64_t elements = 0;
};

// One place a tensor. Never overflows, whatever the manifest says.
// Errors: kInvalidArgument names the tensor or field that does not fit.
absl::StatusOr<std::vector<FlatPlace>> PlaceTensors(const Manifest& manifest);

}  // namespace evenkeel
