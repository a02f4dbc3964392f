// A graph of layers with a loss: forward, backward, and the shapes of its tensors.
//
// Memory: activations and scratch are allocated for the largest batch seen, in the backend's memory, and kept.
// Parameters and gradients belong to the caller, who binds them.
// Threading: one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/shape.h"
#include "evenkeel/core/specs.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/layer.h"

namespace evenkeel {

// Host memory. Exactly one of features and sparse is set.
struct ModelInput {
  std::int64_t batch = 0;
  std::span<const float> features;  // batch * input elements
  const CsrView* sparse = nullptr;
  std::span<const float> labels;  // batch * label_width
  // Training: one key a row, mixed from (seed, epoch, sample); the model mixes in the layer.
  std::span<const std::uint64_t> row_keys;
};

struct StepResult {
  double loss_sum = 0;  // over the batch's samples
  std::int64_t samples = 0;
  // Samples whose loss is NaN or infinite plus non-finite gradient elements. > 0: the update must not commit.
  std::int64_t non_finite = 0;
  // The first layer, in backward order, with such a gradient; "loss" where only losses are so.
  std::string non_finite_layer;
};

// Hears of each layer's pass, on the thread that trains, just before and just after it. The loss is a layer "loss".
class LayerObserver {
 public:
  enum class Pass : std::uint8_t { kForward, kBackward };
  virtual ~LayerObserver() = default;
  virtual void Begins(std::string_view layer, Pass pass) = 0;
  virtual void Ended(std::string_view layer, Pass pass) = 0;
};

struct ModelOptions {
  Shape input;  // of one sample
  std::int64_t label_width = 1;
  bool sparse = false;
  std::int64_t classes = 0;  // > 0: labels are class indices below this, and the loss must have room for them
};

class Model {
 public:
  // Errors: kInvalidArgument names the layer, its input and what does not fit.
  static absl::StatusOr<std::unique_ptr<Model>> Build(const ModelConfig& config, const ModelOptions& options,
                                                      Backend& backend);
  ~Model();

  // Trainable tensors first, then statistics; within each, in forward order. Names are "LAYER/PARAMETER".
  std::span<const TensorSpec> tensors() const;
  const Shape& output_shape() const;  // of one sample

  // Where each tensor's values and gradients lie, in the order of tensors(), in the backend's memory and dtype.
  // Gradients may be empty where only Predict is called. Tells the backend that weights changed.
  absl::Status Bind(std::span<void* const> parameters, std::span<void* const> gradients);
  // The values behind the bound pointers changed in place.
  void ParametersChanged();

  // What is held now for batches of up to `samples`, 0 before the first: activations, their gradients and scratch, the
  // backend's with them.
  struct HeldMemory {
    std::int64_t samples = 0;
    std::int64_t bytes = 0;
  };
  HeldMemory held_memory() const;

  // From the next pass on; null: nobody. It outlives the passes that it hears of.
  void Observe(LayerObserver* observer);

  // Forward, loss, backward. Calls `gradient_ready(i)` once a tensor, when gradient i is final, in the order in which
  // the backward pass finishes them (statistics as soon as the forward pass has them).
  // `parameter_needed(i)`, where given, is called before the first layer that reads parameter i computes: it may wait
  // until the caller's memory holds it. An error ends the step.
  absl::StatusOr<StepResult> TrainStep(const ModelInput& input, const std::function<void(int)>& gradient_ready,
                                       const std::function<absl::Status(int)>& parameter_needed = nullptr);

  // Outputs (logits, predictions), batch * output elements, to host memory; statistics are used, not batch values.
  // Returns the sum of the loss over the samples where labels are given, else 0.
  absl::StatusOr<double> Predict(const ModelInput& input, std::vector<float>& outputs);

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace evenkeel
