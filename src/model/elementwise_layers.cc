#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "model/builtin_layers.h"

namespace evenkeel {
namespace {

// Nothing to do where both lie in the same memory.
absl::Status CopyUnlessShared(Backend& backend, const ConstTensor& from, const Tensor& to) {
  return from.data == to.data ? absl::OkStatus() : backend.Copy(from, to);
}

class Activation final : public Layer, public TakenRelu {
 public:
  Activation(LayerConfig config, ActivationKind kind) : config_(std::move(config)), kind_(kind) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    EK_RETURN_IF_ERROR(ExpectOneInput(LayerLabel(config_), inputs));
    LayerPlan plan;
    plan.output = inputs[0];
    if (given_up_) {
      plan.sharing = LayerPlan::Sharing::kView;
      plan.backward_reads_inputs = plan.backward_reads_output = false;
      return plan;
    }
    plan.sharing = LayerPlan::Sharing::kInPlace;
    // Only gelu's derivative needs its argument; the others follow from the value.
    plan.backward_reads_inputs = kind_ == ActivationKind::kGelu;
    plan.backward_reads_output = kind_ != ActivationKind::kGelu;
    return plan;
  }

  bool GiveUp() override { return given_up_ = kind_ == ActivationKind::kRelu; }

  absl::Status Forward(LayerContext& context) override {
    if (given_up_) return CopyUnlessShared(*context.backend, context.inputs[0], context.output);
    return context.backend->Activation(kind_, context.inputs[0], context.output);
  }

  absl::Status Backward(LayerContext& context) override {
    if (given_up_) return CopyUnlessShared(*context.backend, context.output_gradient, context.input_gradients[0]);
    return context.backend->ActivationBackward(kind_, context.inputs[0], context.output, context.output_gradient,
                                               context.input_gradients[0]);
  }

 private:
  const LayerConfig config_;
  const ActivationKind kind_;
  bool given_up_ = false;
};

class Dropout final : public Layer {
 public:
  Dropout(LayerConfig config, double rate) : config_(std::move(config)), rate_(rate) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    EK_RETURN_IF_ERROR(ExpectOneInput(LayerLabel(config_), inputs));
    LayerPlan plan;
    plan.output = inputs[0];
    plan.sharing = LayerPlan::Sharing::kInPlace;
    plan.backward_reads_inputs = false;
    plan.backward_reads_output = false;
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    if (!context.training || rate_ == 0) return CopyUnlessShared(*context.backend, context.inputs[0], context.output);
    EK_RETURN_IF_ERROR(CheckKeys(context));
    return context.backend->Dropout(rate_, context.row_keys, context.inputs[0], context.output);
  }

  absl::Status Backward(LayerContext& context) override {
    if (rate_ == 0) return CopyUnlessShared(*context.backend, context.output_gradient, context.input_gradients[0]);
    return context.backend->Dropout(rate_, context.row_keys, context.output_gradient, context.input_gradients[0]);
  }

 private:
  absl::Status CheckKeys(const LayerContext& context) const {
    if (static_cast<std::int64_t>(context.row_keys.size()) == context.batch) return absl::OkStatus();
    return LayerError(LayerLabel(config_), absl::StrCat("got ", context.row_keys.size(), " row keys for a batch of ",
                                                        context.batch, "; one a row is wanted"));
  }

  const LayerConfig config_;
  const double rate_;
};

// Other dimensions, the same elements. An empty target stands for flatten.
class Reshape final : public Layer {
 public:
  Reshape(LayerConfig config, std::vector<std::int64_t> target)
      : config_(std::move(config)), target_(std::move(target)) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    EK_RETURN_IF_ERROR(ExpectOneInput(LayerLabel(config_), inputs));
    LayerPlan plan;
    if (target_.empty()) {
      plan.output = Shape{inputs[0].elements()};
    } else {
      EK_ASSIGN_OR_RETURN(plan.output, Target(inputs[0]));
    }
    plan.sharing = LayerPlan::Sharing::kView;
    plan.backward_reads_inputs = false;
    plan.backward_reads_output = false;
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    return CopyUnlessShared(*context.backend, context.inputs[0], context.output);
  }

  absl::Status Backward(LayerContext& context) override {
    return CopyUnlessShared(*context.backend, context.output_gradient, context.input_gradients[0]);
  }

 private:
  absl::StatusOr<Shape> Target(const Shape& input) const {
    Shape shape(target_);
    std::int64_t known = 1;
    int open = -1;
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == -1 && open < 0) {
        open = i;
      } else if (shape[i] < 1) {
        return LayerError(LayerLabel(config_), absl::StrCat("shape is ", Shape(target_).ToString(),
                                                            "; at most one -1 and else at least 1 is wanted"));
      } else {
        known *= shape[i];
      }
    }
    if (open >= 0) shape[open] = input.elements() / known;
    if (shape.elements() != input.elements()) {
      return LayerError(LayerLabel(config_),
                        absl::StrCat("shape ", Shape(target_).ToString(), " does not fit the input ", input.ToString(),
                                     " of ", input.elements(), " elements"));
    }
    return shape;
  }

  const LayerConfig config_;
  const std::vector<std::int64_t> target_;
};

class Add final : public Layer {
 public:
  explicit Add(LayerConfig config) : config_(std::move(config)) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    if (inputs.size() < 2) return LayerError(LayerLabel(config_), "has one input; it takes two or more");
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      if (inputs[i] != inputs[0]) {
        return LayerError(LayerLabel(config_), absl::StrCat("input ", i, " is ", inputs[i].ToString(), ", input 0 is ",
                                                            inputs[0].ToString(), "; equal shapes are wanted"));
      }
    }
    LayerPlan plan;
    plan.output = inputs[0];
    plan.sharing = LayerPlan::Sharing::kInPlace;
    plan.backward_reads_inputs = false;
    plan.backward_reads_output = false;
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    EK_RETURN_IF_ERROR(context.backend->Add(context.inputs[0], context.inputs[1], context.output));
    for (std::size_t i = 2; i < context.inputs.size(); ++i) {
      EK_RETURN_IF_ERROR(context.backend->Accumulate(context.inputs[i], context.output));
    }
    return absl::OkStatus();
  }

  absl::Status Backward(LayerContext& context) override {
    for (const Tensor& gradient : context.input_gradients) {
      if (gradient.data == nullptr) continue;
      EK_RETURN_IF_ERROR(CopyUnlessShared(*context.backend, context.output_gradient, gradient));
    }
    return absl::OkStatus();
  }

 private:
  const LayerConfig config_;
};

class Concat final : public Layer {
 public:
  explicit Concat(LayerConfig config) : config_(std::move(config)) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    const std::string label = LayerLabel(config_);
    if (inputs.size() < 2) return LayerError(label, "has one input; it takes two or more");
    LayerPlan plan;
    plan.output = inputs[0];
    if (plan.output.rank() < 1) return LayerError(label, "input 0 is one value a sample; at least one axis is wanted");
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      Shape fitted = inputs[i];
      if (fitted.rank() == inputs[0].rank()) fitted[-1] = inputs[0][-1];
      if (fitted != inputs[0]) {
        return LayerError(label, absl::StrCat("input ", i, " is ", inputs[i].ToString(), ", input 0 is ",
                                              inputs[0].ToString(), "; they may differ in the last axis only"));
      }
      plan.output[-1] += inputs[i][-1];
    }
    plan.backward_reads_inputs = false;
    plan.backward_reads_output = false;
    plan.backward_writes_all_inputs = true;
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    return context.backend->Concat(context.inputs, context.output);
  }

  absl::Status Backward(LayerContext& context) override {
    return context.backend->Split(context.output_gradient, context.input_gradients);
  }

 private:
  const LayerConfig config_;
};

}  // namespace

LayerOr MakeActivation(const LayerConfig& config) {
  ActivationKind kind = ActivationKind::kRelu;
  if (config.type == "gelu") kind = ActivationKind::kGelu;
  if (config.type == "tanh") kind = ActivationKind::kTanh;
  if (config.type == "sigmoid") kind = ActivationKind::kSigmoid;
  return std::make_unique<Activation>(config, kind);
}

LayerOr MakeDropout(const LayerConfig& config) {
  EK_ASSIGN_OR_RETURN(double rate, FloatAttribute(config, "rate"));
  if (!(rate >= 0 && rate < 1)) {
    return LayerError(LayerLabel(config), absl::StrCat("rate is ", rate, "; [0, 1) is wanted"));
  }
  return std::make_unique<Dropout>(config, rate);
}

LayerOr MakeReshape(const LayerConfig& config) {
  if (config.type == "flatten") return std::make_unique<Reshape>(config, std::vector<std::int64_t>());
  EK_ASSIGN_OR_RETURN(std::vector<std::int64_t> target, IntsAttribute(config, "shape"));
  if (target.empty()) return LayerError(LayerLabel(config), "shape is []; at least one dimension is wanted");
  return std::make_unique<Reshape>(config, std::move(target));
}

LayerOr MakeAdd(const LayerConfig& config) { return std::make_unique<Add>(config); }

LayerOr MakeConcat(const LayerConfig& config) { return std::make_unique<Concat>(config); }

}  // namespace evenkeel
