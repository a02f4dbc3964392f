// A layer: shapes and parameters once, then forward and backward over a backend's operations. Users add their own by
// registering a factory.
//
// Threading: a layer belongs to one model, which one thread drives. Layers hold no parameter values and no activations;
// both come with the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/shape.h"
#include "evenkeel/core/specs.h"
#include "evenkeel/kernels/backend.h"

namespace evenkeel {

// What a layer says of itself once its inputs' shapes are known. All shapes are of one sample, without the batch.
struct LayerPlan {
  Shape output;
  // Names are within the layer ("weight"); the model prefixes them with the layer's name.
  std::vector<TensorSpec> parameters;
  // Floats of scratch kept from forward to backward, per sample and fixed (batch norm's saved statistics).
  std::int64_t saved_per_sample = 0;
  std::int64_t saved_fixed = 0;
  bool accepts_sparse = false;  // the first input may be CSR

  // How memory may be shared; the defaults suit any layer.
  enum class Sharing : std::uint8_t {
    kNone,
    kInPlace,  // output may lie where inputs[0] lies, and input_gradients[0] where output_gradient lies
    kView,     // as kInPlace, and the elements stay as they are: nothing is written then
  };
  Sharing sharing = Sharing::kNone;
  // Where false, Backward finds other data, or none, behind inputs or output.
  bool backward_reads_inputs = true;
  bool backward_reads_output = true;
  // Where true, Backward finds memory behind all input gradients; those that nobody wants are discarded.
  bool backward_writes_all_inputs = false;
};

// One call's operands. Tensors carry the batch as first dimension. During training and evaluation alike, parameters are
// in the plan's order.
struct LayerContext {
  Backend* backend = nullptr;
  bool training = false;
  std::int64_t batch = 0;
  std::vector<ConstTensor> inputs;
  const CsrView* sparse_input = nullptr;  // set instead of inputs[0] when the model's input is sparse
  Tensor output;
  std::vector<ConstTensor> parameters;
  void* saved = nullptr;      // saved_per_sample * batch + saved_fixed elements of the backend's dtype
  void* workspace = nullptr;  // as many bytes as WorkspaceBytes said; kept from forward to backward
  // Row keys for dropout: (seed, epoch, sample, layer) mixed; one a row.
  std::span<const std::uint64_t> row_keys;

  // Sums over the batch. A statistic's is its batch value times the batch and is written by Forward when training; all
  // others are written by Backward.
  std::vector<Tensor> parameter_gradients;

  // Backward only.
  ConstTensor output_gradient;
  std::vector<Tensor> input_gradients;  // data is null where none is wanted; to be overwritten
};

class Layer {
 public:
  virtual ~Layer() = default;
  // Errors: kInvalidArgument names what does not fit, "[conv2d c1] kernel 5x5 is larger than the padded input 3x3".
  virtual absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) = 0;
  // Bytes that `backend` needs from forward to backward beyond `saved`; must not fall when the batch grows.
  virtual absl::StatusOr<std::size_t> WorkspaceBytes(Backend& backend, std::int64_t batch) { return 0; }
  virtual absl::Status Forward(LayerContext& context) = 0;
  // Called after a training Forward of the same batch, where a trainable parameter or an input wants a gradient.
  virtual absl::Status Backward(LayerContext& context) = 0;
};

using LayerFactory = std::function<absl::StatusOr<std::unique_ptr<Layer>>(const LayerConfig& config)>;

// Makes `type` usable as {"custom": {"type": TYPE, "attributes": {...}}}. Register before models are built; not
// thread-safe. Errors: kAlreadyExists.
absl::Status RegisterLayer(const std::string& type, LayerFactory factory);

// Typed access for factories. Errors: kInvalidArgument names layer, attribute, value and the type wanted.
absl::StatusOr<std::int64_t> IntAttribute(const LayerConfig& config, const std::string& name);
absl::StatusOr<double> FloatAttribute(const LayerConfig& config, const std::string& name);
absl::StatusOr<bool> BoolAttribute(const LayerConfig& config, const std::string& name);
absl::StatusOr<std::string> StringAttribute(const LayerConfig& config, const std::string& name);
absl::StatusOr<std::vector<std::int64_t>> IntsAttribute(const LayerConfig& config, const std::string& name);

}  // namespace evenkeel
