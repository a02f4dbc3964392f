// Sets that lie whole in memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/samples.h"
#include "data/statistics.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel::data {

// Bytes stay bytes where one table a channel (or one for all) normalises them; all else becomes float rows, normalised
// here once. Requires labels normalised and statistics that suit the samples' shape.
std::unique_ptr<Dataset> MakeDataset(Samples samples, const Statistics& statistics);

// 16 hex digits over the samples (before normalisation), their order, their labels and the statistics.
std::string FingerprintOf(const Samples& samples, const std::string& statistics_json);

// The rows listed of another set, which it owns.
std::unique_ptr<Dataset> MakeSubset(std::unique_ptr<Dataset> dataset, std::vector<std::int64_t> rows);

// 16 hex digits over size, shapes and a bounded number of samples spread over the set: for sets that need not lie in
// memory. Errors: those of Append.
absl::StatusOr<std::string> FingerprintBySampling(const Dataset& dataset);

}  // namespace evenkeel::data
