// Scores one checkpoint after another with one model, one data set and one flat vector, made for the first and kept.
//
// Threading: one caller at a time. Calls for a checkpoint: Prepare, Load, Evaluate.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "evaluator/batch_ahead.h"
#include "evaluator/metrics.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"

namespace evenkeel {

class CheckpointScorer {
 public:
  CheckpointScorer(Experiment experiment, std::string data_folder, int threads);

  // Opens data and model at the first checkpoint, and again should the data's statistics differ; compares the tensors.
  // Errors: kInvalidArgument for a checkpoint of another model, and for an experiment without evaluation data; what
  // data, model and backend say.
  absl::Status Prepare(const Manifest& manifest);
  // Reads the parameters. Errors: as CheckpointReader::Read.
  absl::Status Load(const CheckpointReader& reader);
  // Asks `cancelled` before each batch. Errors: kCancelled.
  absl::StatusOr<MetricValues> Evaluate(const std::function<bool()>& cancelled);

  // Of the checkpoint loaded last; valid until the next call.
  std::vector<NamedTensor> tensors() const;

 private:
  absl::Status Open(const Manifest& manifest);
  absl::Status CompareTensors(const Manifest& manifest) const;

  const Experiment experiment_;
  const std::string data_folder_;
  const int threads_;

  std::optional<std::string> statistics_json_;
  OpenedData data_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<std::int64_t> offsets_;  // floats, by tensor
  Arena parameters_;
  std::unique_ptr<BatchAhead> batches_;
  std::vector<float> outputs_;
  std::optional<Metrics> metrics_;
};

}  // namespace evenkeel
