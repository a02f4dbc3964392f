#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "model/builtin_layers.h"

namespace evenkeel {
namespace {

// The size of the last axis, which both normalisations need.
absl::StatusOr<std::int64_t> LastAxis(const std::string& label, std::span<const Shape> inputs) {
  EK_RETURN_IF_ERROR(ExpectOneInput(label, inputs));
  if (inputs[0].rank() < 1) return LayerError(label, "input is one value a sample; at least one axis is wanted");
  return inputs[0][-1];
}

class BatchNorm final : public Layer, public ReluTaker {
 public:
  BatchNorm(LayerConfig config, double momentum, double epsilon)
      : config_(std::move(config)), momentum_(momentum), epsilon_(epsilon) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    EK_ASSIGN_OR_RETURN(channels_, LastAxis(LayerLabel(config_), inputs));
    LayerPlan plan;
    plan.output = inputs[0];
    plan.parameters = {MakeOffset("gamma", channels_, 1), MakeOffset("beta", channels_, 0),
                       MakeOffset("moving_mean", channels_, 0), MakeOffset("moving_variance", channels_, 1)};
    for (std::size_t i : {kMean, kVariance}) {
      plan.parameters[i].statistic = true;
      plan.parameters[i].statistic_momentum = static_cast<float>(momentum_);
    }
    plan.saved_fixed = 2 * channels_;
    plan.backward_reads_output = false;
    plan.backward_writes_all_inputs = true;
    output_ = plan.output;
    return plan;
  }

  void TakeRelu() override { relu_ = true; }

  absl::StatusOr<std::size_t> WorkspaceBytes(Backend& backend, std::int64_t batch) override {
    return relu_ ? backend.BatchNormMaskBytes(output_.WithBatch(batch)) : 0;
  }

  absl::Status Forward(LayerContext& context) override {
    Backend& backend = *context.backend;
    const auto& parameters = context.parameters;
    if (!context.training) {
      EK_RETURN_IF_ERROR(backend.BatchNormInfer(epsilon_, context.inputs[0], parameters[kGamma], parameters[kBeta],
                                                parameters[kMean], parameters[kVariance], context.output));
      return relu_ ? backend.Activation(ActivationKind::kRelu, context.output, context.output) : absl::OkStatus();
    }
    const Tensor mean = SavedTensor(context, 0, Shape{channels_});
    const Tensor variance = SavedTensor(context, channels_, Shape{channels_});
    EK_RETURN_IF_ERROR(backend.BatchNormTrain(epsilon_, context.inputs[0], parameters[kGamma], parameters[kBeta],
                                              context.output, mean, variance, Mask(context)));
    // Servers divide by the samples, so that a worker with twice the batch counts twice.
    const auto samples = static_cast<double>(context.batch);
    EK_RETURN_IF_ERROR(backend.Copy(mean, context.parameter_gradients[kMean]));
    EK_RETURN_IF_ERROR(backend.Scale(samples, context.parameter_gradients[kMean]));
    EK_RETURN_IF_ERROR(backend.Copy(variance, context.parameter_gradients[kVariance]));
    return backend.Scale(samples, context.parameter_gradients[kVariance]);
  }

  absl::Status Backward(LayerContext& context) override {
    return context.backend->BatchNormBackward(
        epsilon_, context.inputs[0], context.parameters[kGamma], SavedTensor(context, 0, Shape{channels_}),
        SavedTensor(context, channels_, Shape{channels_}), context.output_gradient, context.input_gradients[0],
        context.parameter_gradients[kGamma], context.parameter_gradients[kBeta], Mask(context));
  }

 private:
  void* Mask(const LayerContext& context) const { return relu_ ? context.workspace : nullptr; }

  static constexpr std::size_t kGamma = 0, kBeta = 1, kMean = 2, kVariance = 3;
  const LayerConfig config_;
  const double momentum_, epsilon_;
  std::int64_t channels_ = 0;  // since Plan
  Shape output_;               // of one sample, likewise
  bool relu_ = false;
};

class LayerNorm final : public Layer {
 public:
  LayerNorm(LayerConfig config, double epsilon) : config_(std::move(config)), epsilon_(epsilon) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    EK_ASSIGN_OR_RETURN(const std::int64_t features, LastAxis(LayerLabel(config_), inputs));
    rows_ = Shape(inputs[0].dims().first(inputs[0].dims().size() - 1));
    LayerPlan plan;
    plan.output = inputs[0];
    plan.parameters = {MakeOffset("gamma", features, 1), MakeOffset("beta", features, 0)};
    plan.saved_per_sample = 2 * rows_.elements();
    plan.backward_reads_output = false;
    plan.backward_writes_all_inputs = true;
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    return context.backend->LayerNorm(epsilon_, context.inputs[0], context.parameters[0], context.parameters[1],
                                      context.output, Mean(context), Variance(context));
  }

  absl::Status Backward(LayerContext& context) override {
    return context.backend->LayerNormBackward(epsilon_, context.inputs[0], context.parameters[0], Mean(context),
                                              Variance(context), context.output_gradient, context.input_gradients[0],
                                              context.parameter_gradients[0], context.parameter_gradients[1]);
  }

 private:
  Tensor Mean(const LayerContext& context) const { return SavedTensor(context, 0, rows_.WithBatch(context.batch)); }
  Tensor Variance(const LayerContext& context) const {
    return SavedTensor(context, context.batch * rows_.elements(), rows_.WithBatch(context.batch));
  }

  const LayerConfig config_;
  const double epsilon_;
  Shape rows_;  // the input without its last axis, of one sample, since Plan
};

}  // namespace

LayerOr MakeBatchNorm(const LayerConfig& config) {
  EK_ASSIGN_OR_RETURN(double momentum, FloatAttribute(config, "momentum"));
  EK_ASSIGN_OR_RETURN(double epsilon, FloatAttribute(config, "epsilon"));
  if (!(momentum >= 0 && momentum < 1) || !(epsilon > 0)) {
    return LayerError(LayerLabel(config), absl::StrCat("momentum is ", momentum, " and epsilon is ", epsilon,
                                                       "; momentum in [0, 1) and epsilon above 0 are wanted"));
  }
  return std::make_unique<BatchNorm>(config, momentum, epsilon);
}

LayerOr MakeLayerNorm(const LayerConfig& config) {
  EK_ASSIGN_OR_RETURN(double epsilon, FloatAttribute(config, "epsilon"));
  if (!(epsilon > 0))
    return LayerError(LayerLabel(config), absl::StrCat("epsilon is ", epsilon, "; above 0 is wanted"));
  return std::make_unique<LayerNorm>(config, epsilon);
}

}  // namespace evenkeel
