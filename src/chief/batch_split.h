// Cuts a total exactly into shares by weight.
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

}  // namespace evenkeel
