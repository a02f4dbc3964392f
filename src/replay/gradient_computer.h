// What a worker computes: the sums of gradients and losses of an update's samples, on the versions it had pulled.
//
// Threading: one caller at a time; several computers beside one another.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/protocol/messages.h"
#include "replay/version_window.h"

namespace evenkeel::replay {

// The backend of this process that is likest to the recorded one: the same kind, the same number of threads.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackendLike(const std::string& fingerprint, const TrainConfig& train);
// Threads that a fingerprint tells of; 1 where it tells none.
int ThreadsOf(const std::string& fingerprint);

class GradientComputer {
 public:
  // `experiment`, `dataset` and `layout` (of one server) outlive it.
  // Errors: kInvalidArgument names the layer; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GradientComputer>> Create(const Experiment& experiment, const Dataset& dataset,
                                                                  const ParameterLayout& layout,
                                                                  std::unique_ptr<Backend> backend);

  // `striped`: the layout of the servers that the update was computed on; `versions`: one of each.
  absl::StatusOr<StepResult> Compute(const CommittedUpdate& update, const ParameterLayout& striped,
                                     std::span<const std::shared_ptr<const FlatVector>> versions);
  // Of the last Compute; flat.
  std::span<const float> gradients() const { return gradients_.floats(); }

 private:
  GradientComputer(const Experiment& experiment, const Dataset& dataset, std::unique_ptr<Backend> backend)
      : experiment_(experiment), dataset_(dataset), backend_(std::move(backend)) {}

  const Experiment& experiment_;
  const Dataset& dataset_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  Arena parameters_, gradients_;
  Batch batch_;
  std::vector<std::uint64_t> row_keys_;
};

}  // namespace evenkeel::replay
