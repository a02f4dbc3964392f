#include <algorithm>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "model/builtin_layers.h"

namespace evenkeel {
namespace {

// A sliding window as the experiment file describes it, shared by convolution and pooling.
struct Window {
  std::int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1;
  std::string padding;  // same, valid, explicit
  std::int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;

  // Fills in the pads of "same", half of an odd total going before and the larger half behind.
  void Resolve(const Shape& image) {
    if (padding != "same") return;
    SamePads(image[0], kernel_h, stride_h, pad_top, pad_bottom);
    SamePads(image[1], kernel_w, stride_w, pad_left, pad_right);
  }

  static void SamePads(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t& before,
                       std::int64_t& after) {
    const std::int64_t out = (in + stride - 1) / stride;
    const std::int64_t total = std::max<std::int64_t>((out - 1) * stride + kernel - in, 0);
    before = total / 2;
    after = total - before;
  }
};

absl::StatusOr<Window> ReadWindow(const LayerConfig& config) {
  const std::string label = LayerLabel(config);
  EK_ASSIGN_OR_RETURN(std::vector<std::int64_t> kernel, IntsAttribute(config, "kernel"));
  EK_ASSIGN_OR_RETURN(std::vector<std::int64_t> stride, IntsAttribute(config, "stride"));
  EK_ASSIGN_OR_RETURN(std::string padding, StringAttribute(config, "padding"));
  EK_ASSIGN_OR_RETURN(std::vector<std::int64_t> pads, IntsAttribute(config, "pads"));
  for (const auto& [name, values] : {std::pair("kernel", &kernel), std::pair("stride", &stride)}) {
    if (values->size() != 2 || (*values)[0] < 1 || (*values)[1] < 1) {
      return LayerError(
          label, absl::StrCat(name, " is ", Shape(*values).ToString(), "; [height, width] is wanted, both at least 1"));
    }
  }
  Window window{kernel[0], kernel[1], stride[0], stride[1], padding};
  if (padding == "explicit") {
    if (pads.size() != 4 || *std::min_element(pads.begin(), pads.end()) < 0) {
      return LayerError(label, absl::StrCat("pads is ", Shape(pads).ToString(),
                                            "; [top, bottom, left, right] is wanted, none negative"));
    }
    window.pad_top = pads[0];
    window.pad_bottom = pads[1];
    window.pad_left = pads[2];
    window.pad_right = pads[3];
  } else if (padding != "same" && padding != "valid") {
    return LayerError(label, absl::StrCat("padding is '", padding, "'; same, valid or explicit is wanted"));
  }
  return window;
}

// The input must be one image, and the window must fit it.
absl::Status CheckWindow(const std::string& label, const Window& window, std::span<const Shape> inputs) {
  EK_RETURN_IF_ERROR(ExpectOneInput(label, inputs));
  const Shape& image = inputs[0];
  if (image.rank() != 3) {
    return LayerError(label, absl::StrCat("input is ", image.ToString(),
                                          " a sample; an image [height, width, channels] is wanted: put a reshape "
                                          "layer before it"));
  }
  const std::int64_t padded_h = image[0] + window.pad_top + window.pad_bottom;
  const std::int64_t padded_w = image[1] + window.pad_left + window.pad_right;
  if (window.kernel_h > padded_h || window.kernel_w > padded_w) {
    return LayerError(label, absl::StrCat("kernel ", window.kernel_h, "x", window.kernel_w,
                                          " is larger than the padded input ", padded_h, "x", padded_w));
  }
  return absl::OkStatus();
}

Shape WindowShape(const Window& window, const Shape& image, std::int64_t channels) {
  return Shape{WindowOutput(image[0], window.kernel_h, window.stride_h, window.pad_top + window.pad_bottom),
               WindowOutput(image[1], window.kernel_w, window.stride_w, window.pad_left + window.pad_right), channels};
}

class Conv2d final : public Layer {
 public:
  Conv2d(LayerConfig config, Window window, std::int64_t filters, std::int64_t groups, bool use_bias,
         std::string initializer)
      : config_(std::move(config)),
        window_(std::move(window)),
        filters_(filters),
        groups_(groups),
        use_bias_(use_bias),
        initializer_(std::move(initializer)) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    const std::string label = LayerLabel(config_);
    Window window = window_;
    if (inputs.size() == 1 && inputs[0].rank() == 3) window.Resolve(inputs[0]);
    EK_RETURN_IF_ERROR(CheckWindow(label, window, inputs));
    const std::int64_t channels = inputs[0][2];
    if (channels % groups_ != 0) {
      return LayerError(label,
                        absl::StrCat("input has ", channels, " channels, which ", groups_, " groups do not divide"));
    }
    spec_ = Conv2dSpec{window.stride_h, window.stride_w,  window.pad_top, window.pad_bottom,
                       window.pad_left, window.pad_right, groups_};
    LayerPlan plan;
    plan.output = WindowShape(window, inputs[0], filters_);
    plan.backward_reads_output = false;
    const std::int64_t field = window.kernel_h * window.kernel_w;
    TensorSpec weight;
    weight.name = "weight";
    weight.shape = Shape{window.kernel_h, window.kernel_w, channels / groups_, filters_};
    EK_ASSIGN_OR_RETURN(weight.initializer, MakeInitializer(config_, initializer_, field * (channels / groups_),
                                                            field * (filters_ / groups_)));
    plan.parameters.push_back(std::move(weight));
    if (use_bias_) plan.parameters.push_back(MakeOffset("bias", filters_, 0));
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    return context.backend->Conv2d(spec_, context.inputs[0], context.parameters[0],
                                   use_bias_ ? context.parameters[1] : ConstTensor(), context.output);
  }

  absl::Status Backward(LayerContext& context) override {
    return context.backend->Conv2dBackward(spec_, context.inputs[0], context.parameters[0], context.output_gradient,
                                           context.input_gradients[0], context.parameter_gradients[0],
                                           use_bias_ ? context.parameter_gradients[1] : Tensor());
  }

 private:
  const LayerConfig config_;
  const Window window_;
  const std::int64_t filters_, groups_;
  const bool use_bias_;
  const std::string initializer_;
  Conv2dSpec spec_;  // since Plan
};

class Pool final : public Layer {
 public:
  Pool(LayerConfig config, Window window, Pool2dSpec::Kind kind)
      : config_(std::move(config)), window_(std::move(window)), kind_(kind) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    Window window = window_;
    if (inputs.size() == 1 && inputs[0].rank() == 3) window.Resolve(inputs[0]);
    EK_RETURN_IF_ERROR(CheckWindow(LayerLabel(config_), window, inputs));
    if (std::max(window.pad_top, window.pad_bottom) >= window.kernel_h ||
        std::max(window.pad_left, window.pad_right) >= window.kernel_w) {
      return LayerError(LayerLabel(config_), absl::StrCat("pads [", window.pad_top, ",", window.pad_bottom, ",",
                                                          window.pad_left, ",", window.pad_right,
                                                          "] leave windows of padding only; pads must be smaller than "
                                                          "the kernel ",
                                                          window.kernel_h, "x", window.kernel_w));
    }
    spec_ = Pool2dSpec{kind_,          window.kernel_h,   window.kernel_w, window.stride_h, window.stride_w,
                       window.pad_top, window.pad_bottom, window.pad_left, window.pad_right};
    input_ = inputs[0];
    LayerPlan plan;
    plan.output = WindowShape(window, inputs[0], inputs[0][2]);
    plan.backward_reads_output = false;
    return plan;
  }

  absl::StatusOr<std::size_t> WorkspaceBytes(Backend& backend, std::int64_t batch) override {
    return backend.Pool2dWorkspaceBytes(spec_, input_.WithBatch(batch));
  }

  absl::Status Forward(LayerContext& context) override {
    return context.backend->Pool2d(spec_, context.inputs[0], context.output, context.workspace);
  }

  absl::Status Backward(LayerContext& context) override {
    return context.backend->Pool2dBackward(spec_, context.inputs[0], context.output_gradient, context.workspace,
                                           context.input_gradients[0]);
  }

 private:
  const LayerConfig config_;
  const Window window_;
  const Pool2dSpec::Kind kind_;
  Pool2dSpec spec_;  // since Plan
  Shape input_;      // of one sample, since Plan
};

class GlobalAveragePool final : public Layer {
 public:
  explicit GlobalAveragePool(LayerConfig config) : config_(std::move(config)) {}

  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    EK_RETURN_IF_ERROR(CheckWindow(LayerLabel(config_), Window{}, inputs));
    LayerPlan plan;
    plan.output = Shape{inputs[0][2]};
    plan.backward_reads_inputs = false;
    plan.backward_reads_output = false;
    return plan;
  }

  absl::Status Forward(LayerContext& context) override {
    return context.backend->GlobalAveragePool(context.inputs[0], context.output);
  }

  absl::Status Backward(LayerContext& context) override {
    return context.backend->GlobalAveragePoolBackward(context.output_gradient, context.input_gradients[0]);
  }

 private:
  const LayerConfig config_;
};

}  // namespace

LayerOr MakeConv2d(const LayerConfig& config) {
  EK_ASSIGN_OR_RETURN(Window window, ReadWindow(config));
  EK_ASSIGN_OR_RETURN(std::int64_t filters, IntAttribute(config, "filters"));
  EK_ASSIGN_OR_RETURN(std::int64_t groups, IntAttribute(config, "groups"));
  EK_ASSIGN_OR_RETURN(bool use_bias, BoolAttribute(config, "use_bias"));
  EK_ASSIGN_OR_RETURN(std::string initializer, StringAttribute(config, "kernel_initializer"));
  if (groups < 1 || filters < 1 || filters % groups != 0) {
    return LayerError(LayerLabel(config), absl::StrCat("filters is ", filters, " and groups is ", groups,
                                                       "; at least 1 each is wanted, filters a multiple of groups"));
  }
  return std::make_unique<Conv2d>(config, std::move(window), filters, groups, use_bias, std::move(initializer));
}

LayerOr MakePool(const LayerConfig& config) {
  EK_ASSIGN_OR_RETURN(Window window, ReadWindow(config));
  return std::make_unique<Pool>(config, std::move(window),
                                config.type == "max_pool" ? Pool2dSpec::Kind::kMax : Pool2dSpec::Kind::kAverage);
}

LayerOr MakeGlobalAveragePool(const LayerConfig& config) { return std::make_unique<GlobalAveragePool>(config); }

}  // namespace evenkeel
