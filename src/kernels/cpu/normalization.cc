#include <bit>
#include <span>
#include <vector>

#include "evenkeel/core/status.h"
#include "kernels/cpu/cpu_backend.h"

namespace evenkeel::kernels::cpu {
namespace {

using dnnl::memory;
using dnnl::normalization_flags;
using dnnl::prop_kind;
using Tensors = std::initializer_list<ConstTensor>;

const auto kScaleShift = normalization_flags::use_scale | normalization_flags::use_shift;

struct CachedStep : CachedOperation {
  Step step;
};

memory::desc VectorDesc(std::int64_t n) { return memory::desc({n}, memory::data_type::f32, memory::format_tag::x); }

// [n, ..., c] as n images of one row, so that oneDNN may split both the batch and the positions.
memory::desc ImagesDesc(const Shape& shape) {
  const std::int64_t n = shape.rank() > 1 ? shape[0] : 1, c = shape[-1];
  return memory::desc({n, c, 1, shape.elements() / (n * c)}, memory::data_type::f32, memory::format_tag::nhwc);
}

enum class BatchNormKind : std::int64_t { kInfer, kTrain, kTrainRelu };

OneDnn::Key KeyOf(Operation operation, std::int64_t kind, double epsilon, std::int64_t a, std::int64_t b,
                  std::int64_t c) {
  return {static_cast<std::int64_t>(operation), kind, std::bit_cast<std::int64_t>(epsilon), a, b, c};
}

OneDnn::Key BatchNormKey(Operation operation, BatchNormKind kind, double epsilon, const Shape& shape) {
  return KeyOf(operation, static_cast<std::int64_t>(kind), epsilon, shape.rank() > 1 ? shape[0] : 1, shape.elements(),
               shape[-1]);
}

normalization_flags FlagsOf(BatchNormKind kind) {
  if (kind == BatchNormKind::kInfer) return kScaleShift | normalization_flags::use_global_stats;
  return kind == BatchNormKind::kTrain ? kScaleShift : kScaleShift | normalization_flags::fuse_norm_relu;
}

dnnl::batch_normalization_forward::primitive_desc BatchNormDesc(const OneDnn& onednn, BatchNormKind kind,
                                                                double epsilon, const memory::desc& data) {
  const bool training = kind != BatchNormKind::kInfer;
  return {dnnl::batch_normalization_forward::desc(training ? prop_kind::forward_training : prop_kind::forward_inference,
                                                  data, static_cast<float>(epsilon), FlagsOf(kind)),
          onednn.attributes(), onednn.engine()};
}

dnnl::layer_normalization_forward::primitive_desc LayerNormDesc(const OneDnn& onednn, double epsilon, RowDims d) {
  const memory::desc data({d.rows, d.columns}, memory::data_type::f32, memory::format_tag::ab);
  return {dnnl::layer_normalization_forward::desc(prop_kind::forward_training, data, VectorDesc(d.rows),
                                                  static_cast<float>(epsilon), kScaleShift),
          onednn.attributes(), onednn.engine()};
}

}  // namespace

absl::Status CpuBackend::BatchNormForward(bool training, double epsilon, const Shape& shape, const float* x,
                                          const float* gamma, const float* beta, const void* mean, const void* variance,
                                          float* y, void* relu_mask) {
  UseThreads();
  const BatchNormKind kind = !training              ? BatchNormKind::kInfer
                             : relu_mask == nullptr ? BatchNormKind::kTrain
                                                    : BatchNormKind::kTrainRelu;
  return Guarded("batch norm", [&] {
    auto& norm = onednn_.Cached<CachedStep>(BatchNormKey(Operation::kBatchNorm, kind, epsilon, shape), [&] {
      const memory::desc data = ImagesDesc(shape), channels = VectorDesc(shape[-1]);
      const auto pd = BatchNormDesc(onednn_, kind, epsilon, data);
      auto made = std::make_unique<CachedStep>();
      std::vector<Step::Argument> arguments = {{DNNL_ARG_SRC, data},          {DNNL_ARG_SCALE, channels},
                                               {DNNL_ARG_SHIFT, channels},    {DNNL_ARG_MEAN, channels},
                                               {DNNL_ARG_VARIANCE, channels}, {DNNL_ARG_DST, data}};
      if (kind == BatchNormKind::kTrainRelu) arguments.push_back({DNNL_ARG_WORKSPACE, pd.workspace_desc()});
      made->step = Step(onednn_, dnnl::batch_normalization_forward(pd), pd.scratchpad_desc(), arguments);
      return made;
    });
    const void* const addresses[] = {x, gamma, beta, mean, variance, y, relu_mask};
    return norm.step.Run(onednn_, std::span(addresses).first(relu_mask == nullptr ? 6 : 7));
  });
}

absl::StatusOr<std::size_t> CpuBackend::BatchNormMaskBytes(const Shape& x) {
  if (x.rank() < 1 || x.elements() == 0) return 0;
  std::size_t bytes = 0;
  EK_RETURN_IF_ERROR(Guarded("batch norm", [&] {
    bytes = BatchNormDesc(onednn_, BatchNormKind::kTrainRelu, 1e-5, ImagesDesc(x)).workspace_desc().get_size();
    return absl::OkStatus();
  }));
  return bytes;
}

absl::Status CpuBackend::BatchNormTrain(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y,
                                        Tensor mean, Tensor variance, void* relu_mask) {
  EK_ASSIGN_OR_RETURN(RowDims d,
                      CheckBatchNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{y}, Tensors{beta}));
  if (d.rows == 0) {
    loops_.fill(d.columns, 0, Out(mean));
    loops_.fill(d.columns, 0, Out(variance));
    return absl::OkStatus();
  }
  return BatchNormForward(true, epsilon, x.shape, In(x), In(gamma), In(beta), mean.data, variance.data, Out(y),
                          relu_mask);
}

absl::Status CpuBackend::BatchNormInfer(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta,
                                        ConstTensor mean, ConstTensor variance, Tensor y) {
  EK_ASSIGN_OR_RETURN(RowDims d,
                      CheckBatchNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{y}, Tensors{beta}));
  if (d.rows == 0) return absl::OkStatus();
  return BatchNormForward(false, epsilon, x.shape, In(x), In(gamma), In(beta), mean.data, variance.data, Out(y),
                          nullptr);
}

absl::Status CpuBackend::BatchNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                           ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma, Tensor dbeta,
                                           const void* relu_mask) {
  EK_ASSIGN_OR_RETURN(
      RowDims d, CheckBatchNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{dy, dx}, Tensors{dgamma, dbeta}));
  if (d.rows == 0) {
    loops_.fill(d.columns, 0, Out(dgamma));
    loops_.fill(d.columns, 0, Out(dbeta));
    return absl::OkStatus();
  }
  UseThreads();
  const BatchNormKind kind = relu_mask == nullptr ? BatchNormKind::kTrain : BatchNormKind::kTrainRelu;
  return Guarded("batch norm backward", [&] {
    auto& norm = onednn_.Cached<CachedStep>(BatchNormKey(Operation::kBatchNormBackward, kind, epsilon, x.shape), [&] {
      const memory::desc data = ImagesDesc(x.shape), channels = VectorDesc(d.columns);
      const dnnl::batch_normalization_backward::primitive_desc pd(
          dnnl::batch_normalization_backward::desc(prop_kind::backward, data, data, static_cast<float>(epsilon),
                                                   FlagsOf(kind)),
          onednn_.attributes(), onednn_.engine(), BatchNormDesc(onednn_, kind, epsilon, data));
      auto made = std::make_unique<CachedStep>();
      std::vector<Step::Argument> arguments = {
          {DNNL_ARG_SRC, data},      {DNNL_ARG_SCALE, channels},      {DNNL_ARG_SHIFT, channels},
          {DNNL_ARG_MEAN, channels}, {DNNL_ARG_VARIANCE, channels},   {DNNL_ARG_DIFF_DST, data},
          {DNNL_ARG_DIFF_SRC, data}, {DNNL_ARG_DIFF_SCALE, channels}, {DNNL_ARG_DIFF_SHIFT, channels}};
      if (kind == BatchNormKind::kTrainRelu) arguments.push_back({DNNL_ARG_WORKSPACE, pd.workspace_desc()});
      made->step = Step(onednn_, dnnl::batch_normalization_backward(pd), pd.scratchpad_desc(), arguments);
      return made;
    });
    const void* const addresses[] = {x.data,  gamma.data, gamma.data,  mean.data,  variance.data,
                                     dy.data, dx.data,    dgamma.data, dbeta.data, relu_mask};
    return norm.step.Run(onednn_, std::span(addresses).first(relu_mask == nullptr ? 9 : 10));
  });
}

absl::Status CpuBackend::LayerNorm(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y,
                                   Tensor mean, Tensor variance) {
  EK_ASSIGN_OR_RETURN(RowDims d,
                      CheckLayerNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{y}, Tensors{beta}));
  if (d.rows == 0) return absl::OkStatus();
  UseThreads();
  return Guarded("layer norm", [&] {
    auto& norm = onednn_.Cached<CachedStep>(KeyOf(Operation::kLayerNorm, 0, epsilon, d.rows, d.columns, 0), [&] {
      const auto pd = LayerNormDesc(onednn_, epsilon, d);
      auto made = std::make_unique<CachedStep>();
      made->step = Step(onednn_, dnnl::layer_normalization_forward(pd), pd.scratchpad_desc(),
                        {{DNNL_ARG_SRC, pd.src_desc()},
                         {DNNL_ARG_SCALE, VectorDesc(d.columns)},
                         {DNNL_ARG_SHIFT, VectorDesc(d.columns)},
                         {DNNL_ARG_MEAN, VectorDesc(d.rows)},
                         {DNNL_ARG_VARIANCE, VectorDesc(d.rows)},
                         {DNNL_ARG_DST, pd.dst_desc()}});
      return made;
    });
    return norm.step.Run(onednn_, {x.data, gamma.data, beta.data, mean.data, variance.data, y.data});
  });
}

absl::Status CpuBackend::LayerNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                           ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma,
                                           Tensor dbeta) {
  EK_ASSIGN_OR_RETURN(
      RowDims d, CheckLayerNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{dy, dx}, Tensors{dgamma, dbeta}));
  if (d.rows == 0) {
    loops_.fill(d.columns, 0, Out(dgamma));
    loops_.fill(d.columns, 0, Out(dbeta));
    return absl::OkStatus();
  }
  UseThreads();
  return Guarded("layer norm backward", [&] {
    auto& norm =
        onednn_.Cached<CachedStep>(KeyOf(Operation::kLayerNormBackward, 0, epsilon, d.rows, d.columns, 0), [&] {
          const memory::desc data({d.rows, d.columns}, memory::data_type::f32, memory::format_tag::ab);
          const dnnl::layer_normalization_backward::primitive_desc pd(
              dnnl::layer_normalization_backward::desc(prop_kind::backward, data, data, VectorDesc(d.rows),
                                                       static_cast<float>(epsilon), kScaleShift),
              onednn_.attributes(), onednn_.engine(), LayerNormDesc(onednn_, epsilon, d));
          auto made = std::make_unique<CachedStep>();
          made->step = Step(onednn_, dnnl::layer_normalization_backward(pd), pd.scratchpad_desc(),
                            {{DNNL_ARG_SRC, data},
                             {DNNL_ARG_SCALE, VectorDesc(d.columns)},
                             {DNNL_ARG_SHIFT, VectorDesc(d.columns)},
                             {DNNL_ARG_MEAN, VectorDesc(d.rows)},
                             {DNNL_ARG_VARIANCE, VectorDesc(d.rows)},
                             {DNNL_ARG_DIFF_DST, data},
                             {DNNL_ARG_DIFF_SRC, data},
                             {DNNL_ARG_DIFF_SCALE, VectorDesc(d.columns)},
                             {DNNL_ARG_DIFF_SHIFT, VectorDesc(d.columns)}});
          return made;
        });
    return norm.step.Run(
        onednn_, {x.data, gamma.data, gamma.data, mean.data, variance.data, dy.data, dx.data, dgamma.data, dbeta.data});
  });
}

}  // namespace evenkeel::kernels::cpu
