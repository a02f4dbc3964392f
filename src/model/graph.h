// A model's layers as a graph whose shapes fit: nodes in topological order, values between them, and the tensors.
//
// Threading: none. Ownership: the graph owns its layers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/shape.h"
#include "evenkeel/core/specs.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/layer.h"
#include "evenkeel/model/model.h"

namespace evenkeel {

// Value 0 is the model's input, value i + 1 the output of node i.
using ValueId = int;
constexpr ValueId kInputValue = 0;
constexpr ValueId OutputOf(int node) { return node + 1; }
constexpr int ProducerOf(ValueId value) { return value - 1; }  // -1 for the input

// One operation: a layer of the experiment, or the activation folded into one.
struct Node {
  std::string label;  // "conv2d c1"
  std::string name;   // the layer's
  std::unique_ptr<Layer> layer;
  LayerPlan plan;
  std::vector<ValueId> inputs;
  std::vector<int> tensors;  // indices into Graph::tensors, in the plan's order
  bool wants_row_keys = false;
  bool has_backward = false;  // a trainable tensor of its own, or an input that requires a gradient
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Shape> values;            // shapes, of one sample
  std::vector<bool> requires_gradient;  // by value: some trainable tensor lies before it
  std::vector<TensorSpec> tensors;      // trainable ones first, then statistics; each in forward order
  ValueId output() const { return static_cast<ValueId>(values.size()) - 1; }
};

// Errors: kInvalidArgument names the layer and what does not fit.
absl::StatusOr<Graph> BuildGraph(const ModelConfig& config, const ModelOptions& options);

// The loss for outputs of this shape, or why it does not fit. `last_layer` is the label of the layer that gives them.
absl::StatusOr<LossSpec> MakeLoss(const LossConfig& config, const Shape& outputs, const std::string& last_layer,
                                  const ModelOptions& options);
// Shape of the labels of one batch, as the backend's Loss takes them.
Shape LabelShape(const LossSpec& loss, std::int64_t batch, std::int64_t outputs);

}  // namespace evenkeel
