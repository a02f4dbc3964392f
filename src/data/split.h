// The split of one set into training and evaluation rows.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace evenkeel::data {

enum class Part { kWhole, kTraining, kEval };

// The rows of a part, ascending: round(fraction * size) rows, at least one and not all, are for evaluation, picked by a
// permutation keyed with split_seed; the others are for training. The two are disjoint and cover [0, size).
// Errors: kInvalidArgument when size < 2 or the fraction is outside (0, 1).
absl::StatusOr<std::vector<std::int64_t>> RowsOf(Part part, std::int64_t size, double fraction,
                                                 std::uint64_t split_seed);

}  // namespace evenkeel::data
