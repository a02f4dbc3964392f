#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "model/builtin_layers.h"

namespace evenkeel {
namespace {

class Dense final : public Layer {
 public:
  Dense(LayerConfig config, std::int64_t units, bool use_bias, std::string initializer)
      : config_(std::move(config)), units_(units), use_bias_(use_bias), initializer_(std::move(initializer)) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    const std::string label = LayerLabel(config_);
    EK_RETURN_IF_ERROR(ExpectOneInput(label, inputs));
    if (inputs[0].rank() != 1) {
      return LayerError(label, absl::StrCat("input is ", inputs[0].ToString(),
                                            " a sample; dense takes one axis of features: put a flatten layer (or a "
                                            "pooling layer and flatten) before it"));
    }
    const std::int64_t features = inputs[0][0];
    LayerPlan plan;
    plan.output = Shape{units_};
    plan.accepts_sparse = true;
    plan.backward_reads_output = false;
    TensorSpec weight;
    weight.name = "weight";
    weight.shape = Shape{features, units_};
    EK_ASSIGN_OR_RETURN(weight.initializer, MakeInitializer(config_, initializer_, features, units_));
    plan.parameters.push_back(std::move(weight));
    if (use_bias_) plan.parameters.push_back(MakeOffset("bias", units_, 0));
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    const ConstTensor bias = use_bias_ ? context.parameters[1] : ConstTensor();
    if (context.sparse_input != nullptr) {
      return context.backend->SparseDense(*context.sparse_input, context.parameters[0], bias, context.output);
    }
    return context.backend->Dense(context.inputs[0], context.parameters[0], bias, context.output);
  }

  absl::Status Backward(LayerContext& context) override {
    const Tensor bias_gradient = use_bias_ ? context.parameter_gradients[1] : Tensor();
    if (context.sparse_input != nullptr) {
      return context.backend->SparseDenseBackward(*context.sparse_input, context.output_gradient,
                                                  context.parameter_gradients[0], bias_gradient);
    }
    return context.backend->DenseBackward(context.inputs[0], context.parameters[0], context.output_gradient,
                                          context.input_gradients[0], context.parameter_gradients[0], bias_gradient);
  }

 private:
  const LayerConfig config_;
  const std::int64_t units_;
  const bool use_bias_;
  const std::string initializer_;
};

}  // namespace

LayerOr MakeDense(const LayerConfig& config) {
  EK_ASSIGN_OR_RETURN(std::int64_t units, IntAttribute(config, "units"));
  EK_ASSIGN_OR_RETURN(bool use_bias, BoolAttribute(config, "use_bias"));
  EK_ASSIGN_OR_RETURN(std::string initializer, StringAttribute(config, "kernel_initializer"));
  if (units < 1) return LayerError(LayerLabel(config), absl::StrCat("units is ", units, "; at least 1 is wanted"));
  return std::make_unique<Dense>(config, units, use_bias, std::move(initializer));
}

}  // namespace evenkeel
