// Runs a graph: the operands of every node, wired once for a batch size and reused by every step.
//
// Memory: one block for the largest batch seen, in the backend's memory; a larger batch replaces it by one that leaves
// room to grow. Parameters and gradients are the caller's.
// Threading: one caller at a time. Ownership: graph and backend outlive the executor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/layer.h"
#include "evenkeel/model/model.h"
#include "model/graph.h"
#include "model/memory_plan.h"

namespace evenkeel {

class Executor {
 public:
  Executor(const Graph& graph, const ModelOptions& options, const LossSpec& loss, Backend& backend);

  absl::Status Bind(std::span<void* const> parameters, std::span<void* const> gradients);
  bool has_parameters() const { return has_parameters_; }
  bool has_gradients() const { return has_gradients_; }
  // Of the largest batch, that memory is held for; 0 before the first.
  std::int64_t capacity() const { return capacity_; }
  std::size_t held_bytes() const { return memory_ == nullptr ? 0 : memory_->bytes(); }

  // Makes memory and operands fit the batch, and copies the input and, where given, the labels. The sparse input must
  // outlive the passes.
  absl::Status Load(const ModelInput& input);

  void Observe(LayerObserver* observer) { observer_ = observer; }

  using GradientReady = std::function<void(int)>;
  using ParameterNeeded = std::function<absl::Status(int)>;
  // Counts what is non-finite on the way. `ready` hears of statistics in a training pass.
  absl::Status Forward(bool training, const GradientReady& ready, const ParameterNeeded& needed = nullptr);
  // The loss of the outputs, with its gradient where wanted.
  absl::Status Loss(bool with_gradient);
  absl::Status Backward(const GradientReady& ready);

  // Of the last pass: the sum of the losses, and how many are not finite.
  absl::StatusOr<std::pair<double, std::int64_t>> SumLosses();
  absl::Status ReadOutputs(std::vector<float>& outputs);
  // Non-finite gradient elements of the last step, and the first layer in backward order with one.
  std::int64_t non_finite() const { return non_finite_; }
  const std::string& non_finite_layer() const { return non_finite_layer_; }

 private:
  // One gradient that is added to another once its node's backward pass has written it.
  struct Accumulation {
    ConstTensor from;
    Tensor to;
  };

  // Runs a layer's pass, heard by the observer.
  template <class Body>
  absl::Status Observed(std::string_view layer, LayerObserver::Pass pass, const Body& body) {
    if (observer_ == nullptr) return body();
    observer_->Begins(layer, pass);
    absl::Status status = body();
    observer_->Ended(layer, pass);
    return status;
  }
  absl::Status CheckInput(const ModelInput& input) const;
  absl::Status Reserve(std::int64_t batch);
  void WireMemory();
  void SetBatch(std::int64_t batch);
  void MixRowKeys(std::span<const std::uint64_t> row_keys);
  absl::Status CopyIn(std::span<const float> from, const Tensor& to);
  // Counts non-finite elements of a gradient that is final, then tells `ready`.
  absl::Status Finish(int node, std::size_t parameter, const GradientReady& ready);
  void* Address(int buffer) const;
  Tensor Batched(int buffer, const Shape& sample) const;

  const Graph& graph_;
  const ModelOptions& options_;
  const LossSpec loss_spec_;
  Backend& backend_;
  const DType dtype_;
  MemoryPlan plan_;

  LayerObserver* observer_ = nullptr;

  std::int64_t capacity_ = 0;
  std::int64_t batch_ = 0;
  std::unique_ptr<DeviceBuffer> memory_;
  Placement placement_;

  std::vector<LayerContext> contexts_;                    // by node
  std::vector<std::vector<Accumulation>> accumulations_;  // by node
  std::vector<std::vector<std::uint64_t>> row_keys_;      // by node
  Tensor features_, outputs_, output_gradient_, labels_, losses_;
  bool has_parameters_ = false;
  bool has_gradients_ = false;

  std::vector<double> staging_;  // host copies where the backend computes in double
  std::vector<float> host_losses_;
  std::vector<std::int64_t> statistic_non_finite_;  // by node, of the forward pass
  std::int64_t non_finite_ = 0;
  std::string non_finite_layer_;
};

}  // namespace evenkeel
