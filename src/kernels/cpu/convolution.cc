#include "evenkeel/core/status.h"
#include "kernels/cpu/cpu_backend.h"

namespace evenkeel::kernels::cpu {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;

// Descriptors of one convolution: activations as they lie (NHWC), weights as the door has them and as oneDNN likes.
struct ConvDescs {
  memory::desc x, w_door, w_any, b, y;
  memory::dims strides, pad_before, pad_after;

  ConvDescs(const Conv2dSpec& spec, const WindowDims& d, bool bias) {
    constexpr auto kType = memory::data_type::f32;
    const std::int64_t groups = spec.groups, in = d.c / groups, out = d.out / groups;
    x = memory::desc({d.n, d.c, d.h, d.w}, kType, memory::format_tag::nhwc);
    y = memory::desc({d.n, d.out, d.oh, d.ow}, kType, memory::format_tag::nhwc);
    const std::int64_t per_tap = in * d.out;
    if (groups == 1) {
      const memory::dims dims = {out, in, d.kernel_h, d.kernel_w};
      w_door = memory::desc(dims, kType, memory::dims{1, d.out, d.kernel_w * per_tap, per_tap});
      w_any = memory::desc(dims, kType, memory::format_tag::any);
    } else {
      const memory::dims dims = {groups, out, in, d.kernel_h, d.kernel_w};
      w_door = memory::desc(dims, kType, memory::dims{out, 1, d.out, d.kernel_w * per_tap, per_tap});
      w_any = memory::desc(dims, kType, memory::format_tag::any);
    }
    if (bias) b = memory::desc({d.out}, kType, memory::format_tag::x);
    strides = {spec.stride_h, spec.stride_w};
    pad_before = {spec.pad_top, spec.pad_left};
    pad_after = {spec.pad_bottom, spec.pad_right};
  }

  dnnl::convolution_forward::primitive_desc Forward(const OneDnn& onednn) const {
    const auto kind = prop_kind::forward_training;
    return {b.is_zero() ? dnnl::convolution_forward::desc(kind, algorithm::convolution_direct, x, w_any, y, strides,
                                                          pad_before, pad_after)
                        : dnnl::convolution_forward::desc(kind, algorithm::convolution_direct, x, w_any, b, y, strides,
                                                          pad_before, pad_after),
            onednn.attributes(), onednn.engine()};
  }
};

struct ConvForward : CachedOperation {
  PreferredWeights weights;
  Step step;
};
struct ConvBackwardData : CachedOperation {
  PreferredWeights weights;
  Step step;
};
struct ConvBackwardWeights : CachedOperation {
  PreferredWeights weights;
  Step step;
};

OneDnn::Key KeyOf(Operation operation, const Conv2dSpec& spec, const WindowDims& d, bool bias) {
  return {static_cast<std::int64_t>(operation),
          bias,
          d.n,
          d.h,
          d.w,
          d.c,
          d.kernel_h,
          d.kernel_w,
          d.out,
          spec.stride_h,
          spec.stride_w,
          spec.pad_top,
          spec.pad_bottom,
          spec.pad_left,
          spec.pad_right,
          spec.groups};
}

std::unique_ptr<CachedOperation> MakeForward(OneDnn& onednn, const Conv2dSpec& spec, const WindowDims& d, bool bias) {
  const ConvDescs descs(spec, d, bias);
  const auto pd = descs.Forward(onednn);
  auto made = std::make_unique<ConvForward>();
  made->weights = PreferredWeights(onednn, descs.w_door, pd.weights_desc());
  const dnnl::convolution_forward primitive(pd);
  if (bias) {
    made->step = Step(onednn, primitive, pd.scratchpad_desc(),
                      {{DNNL_ARG_SRC, pd.src_desc()},
                       {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                       {DNNL_ARG_DST, pd.dst_desc()},
                       {DNNL_ARG_BIAS, pd.bias_desc()}});
  } else {
    made->step =
        Step(onednn, primitive, pd.scratchpad_desc(),
             {{DNNL_ARG_SRC, pd.src_desc()}, {DNNL_ARG_WEIGHTS, pd.weights_desc()}, {DNNL_ARG_DST, pd.dst_desc()}});
  }
  return made;
}

std::unique_ptr<CachedOperation> MakeBackwardData(OneDnn& onednn, const Conv2dSpec& spec, const WindowDims& d) {
  const ConvDescs descs(spec, d, false);
  const dnnl::convolution_backward_data::primitive_desc pd(
      dnnl::convolution_backward_data::desc(algorithm::convolution_direct, descs.x, descs.w_any, descs.y, descs.strides,
                                            descs.pad_before, descs.pad_after),
      onednn.attributes(), onednn.engine(), descs.Forward(onednn));
  auto made = std::make_unique<ConvBackwardData>();
  made->weights = PreferredWeights(onednn, descs.w_door, pd.weights_desc());
  made->step = Step(onednn, dnnl::convolution_backward_data(pd), pd.scratchpad_desc(),
                    {{DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                     {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                     {DNNL_ARG_DIFF_SRC, pd.diff_src_desc()}});
  return made;
}

std::unique_ptr<CachedOperation> MakeBackwardWeights(OneDnn& onednn, const Conv2dSpec& spec, const WindowDims& d,
                                                     bool bias) {
  const ConvDescs descs(spec, d, bias);
  using Backward = dnnl::convolution_backward_weights;
  const auto direct = algorithm::convolution_direct;
  const Backward::primitive_desc pd(
      bias ? Backward::desc(direct, descs.x, descs.w_any, descs.b, descs.y, descs.strides, descs.pad_before,
                            descs.pad_after)
           : Backward::desc(direct, descs.x, descs.w_any, descs.y, descs.strides, descs.pad_before, descs.pad_after),
      onednn.attributes(), onednn.engine(), descs.Forward(onednn));
  auto made = std::make_unique<ConvBackwardWeights>();
  made->weights = PreferredWeights(onednn, descs.w_door, pd.diff_weights_desc());
  if (bias) {
    made->step = Step(onednn, Backward(pd), pd.scratchpad_desc(),
                      {{DNNL_ARG_SRC, pd.src_desc()},
                       {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                       {DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()},
                       {DNNL_ARG_DIFF_BIAS, pd.diff_bias_desc()}});
  } else {
    made->step = Step(onednn, Backward(pd), pd.scratchpad_desc(),
                      {{DNNL_ARG_SRC, pd.src_desc()},
                       {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                       {DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()}});
  }
  return made;
}

}  // namespace

absl::Status CpuBackend::Conv2d(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) {
  EK_ASSIGN_OR_RETURN(WindowDims d, CheckConv2d(dtype(), spec, x, w, b, y));
  if (d.n == 0) return absl::OkStatus();
  UseThreads();
  return Guarded("conv2d", [&]() -> absl::Status {
    const bool bias = b.data != nullptr;
    auto& conv = onednn_.Cached<ConvForward>(KeyOf(Operation::kConv, spec, d, bias),
                                             [&] { return MakeForward(onednn_, spec, d, bias); });
    EK_ASSIGN_OR_RETURN(const void* weights, conv.weights.Import(onednn_, w.data, weights_generation_));
    if (bias) return conv.step.Run(onednn_, {x.data, weights, y.data, b.data});
    return conv.step.Run(onednn_, {x.data, weights, y.data});
  });
}

absl::Status CpuBackend::Conv2dBackward(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx,
                                        Tensor dw, Tensor db) {
  EK_ASSIGN_OR_RETURN(WindowDims d, CheckConv2dBackward(dtype(), spec, x, w, dy, dx, dw, db));
  const bool bias = db.data != nullptr;
  if (d.n == 0) {
    loops_.fill(dw.elements(), 0, Out(dw));
    if (bias) loops_.fill(db.elements(), 0, Out(db));
    return absl::OkStatus();
  }
  UseThreads();
  return Guarded("conv2d backward", [&]() -> absl::Status {
    if (dx.data != nullptr) {
      auto& data = onednn_.Cached<ConvBackwardData>(KeyOf(Operation::kConvBackwardData, spec, d, false),
                                                    [&] { return MakeBackwardData(onednn_, spec, d); });
      EK_ASSIGN_OR_RETURN(const void* weights, data.weights.Import(onednn_, w.data, weights_generation_));
      EK_RETURN_IF_ERROR(data.step.Run(onednn_, {dy.data, weights, dx.data}));
    }
    auto& gradient = onednn_.Cached<ConvBackwardWeights>(KeyOf(Operation::kConvBackwardWeights, spec, d, bias),
                                                         [&] { return MakeBackwardWeights(onednn_, spec, d, bias); });
    const void* target = gradient.weights.Target(dw.data);
    EK_RETURN_IF_ERROR(bias ? gradient.step.Run(onednn_, {x.data, dy.data, target, db.data})
                            : gradient.step.Run(onednn_, {x.data, dy.data, target}));
    return gradient.weights.Export(onednn_, dw.data);
  });
}

}  // namespace evenkeel::kernels::cpu
