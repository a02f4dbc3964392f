// Where scores go: eval.csv, TensorBoard events, and the best export.
//
// Threading: one caller at a time. Errors name the path.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evaluator/score_state.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/metrics/sinks.h"

namespace evenkeel {

class ScoreOutputs {
 public:
  // `metrics`: the columns, loss first. `last` is written where a crash kept it from eval.csv.
  static absl::StatusOr<ScoreOutputs> Open(Storage& storage, const std::string& model_dir, const Clock& clock,
                                           const std::vector<std::string>& metrics, const std::optional<Score>& last);
  absl::Status Write(const Score& score);

 private:
  ScoreOutputs() = default;
  Storage* storage_ = nullptr;
  const Clock* clock_ = nullptr;
  std::string event_folder_;
  std::unique_ptr<CsvWriter> csv_;
  std::unique_ptr<EventFileWriter> events_;  // opened with the first score
};

// MODEL_DIR/best: the model first, then best.json, each atomically.
absl::Status WriteBest(Storage& storage, const std::string& model_dir, const Manifest& manifest, const BestScore& best,
                       const MetricValues& metrics, const std::vector<NamedTensor>& tensors);
// What best.json says; none where one of the two files is missing. Errors: kDataLoss.
absl::StatusOr<std::optional<BestScore>> ReadBest(const Storage& storage, const std::string& model_dir);

}  // namespace evenkeel
