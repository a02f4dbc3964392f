#include "evenkeel/core/status.h"
#include "kernels/cpu/cpu_backend.h"

namespace evenkeel::kernels::cpu {
namespace {

using dnnl::memory;

struct CachedStep : CachedOperation {
  Step step;
};

constexpr std::int64_t kElementGrain = 16384;

bool ByteWinners(const Pool2dSpec& spec) { return spec.kernel_h * spec.kernel_w <= 256; }

PoolGeometry GeometryOf(const Pool2dSpec& spec, const WindowDims& d) {
  return {d.h, d.w, d.c, d.oh, d.ow, d.kernel_h, d.kernel_w, spec.stride_h, spec.stride_w, spec.pad_top, spec.pad_left};
}

std::int64_t ImageGrain(const WindowDims& d) { return std::max<std::int64_t>(1, kElementGrain / (d.h * d.w * d.c)); }

}  // namespace

absl::Status CpuBackend::AveragePool(bool backward, const Pool2dSpec& spec, const WindowDims& d, const void* from,
                                     void* to) {
  const OneDnn::Key key = {
      static_cast<std::int64_t>(backward ? Operation::kAveragePoolBackward : Operation::kAveragePool),
      d.n,
      d.h,
      d.w,
      d.c,
      d.kernel_h,
      d.kernel_w,
      spec.stride_h,
      spec.stride_w,
      spec.pad_top,
      spec.pad_bottom,
      spec.pad_left,
      spec.pad_right};
  UseThreads();
  return Guarded("average pool", [&] {
    auto& pool = onednn_.Cached<CachedStep>(key, [&] {
      const memory::desc x({d.n, d.c, d.h, d.w}, memory::data_type::f32, memory::format_tag::nhwc);
      const memory::desc y({d.n, d.c, d.oh, d.ow}, memory::data_type::f32, memory::format_tag::nhwc);
      const memory::dims strides = {spec.stride_h, spec.stride_w}, kernel = {d.kernel_h, d.kernel_w},
                         before = {spec.pad_top, spec.pad_left}, after = {spec.pad_bottom, spec.pad_right};
      const auto average = dnnl::algorithm::pooling_avg_exclude_padding;
      const dnnl::pooling_forward::primitive_desc forward(
          dnnl::pooling_forward::desc(dnnl::prop_kind::forward_training, average, x, y, strides, kernel, before, after),
          onednn_.attributes(), onednn_.engine());
      auto made = std::make_unique<CachedStep>();
      if (backward) {
        const dnnl::pooling_backward::primitive_desc pd(
            dnnl::pooling_backward::desc(average, x, y, strides, kernel, before, after), onednn_.attributes(),
            onednn_.engine(), forward);
        made->step = Step(onednn_, dnnl::pooling_backward(pd), pd.scratchpad_desc(),
                          {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_DIFF_SRC, x}});
      } else {
        made->step = Step(onednn_, dnnl::pooling_forward(forward), forward.scratchpad_desc(),
                          {{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, y}});
      }
      return made;
    });
    return pool.step.Run(onednn_, {from, to});
  });
}

absl::StatusOr<std::size_t> CpuBackend::Pool2dWorkspaceBytes(const Pool2dSpec& spec, const Shape& x) {
  EK_ASSIGN_OR_RETURN(WindowDims d, CheckPool2dShape(spec, x));
  if (spec.kind == Pool2dSpec::Kind::kAverage) return 0;
  return static_cast<std::size_t>(d.n * d.oh * d.ow * d.c) * (ByteWinners(spec) ? 1 : sizeof(std::int32_t));
}

absl::Status CpuBackend::Pool2d(const Pool2dSpec& spec, ConstTensor x, Tensor y, void* workspace) {
  EK_ASSIGN_OR_RETURN(WindowDims d, CheckPool2d(dtype(), spec, x, y, workspace));
  if (d.n == 0) return absl::OkStatus();
  if (spec.kind == Pool2dSpec::Kind::kAverage) return AveragePool(false, spec, d, x.data, y.data);
  const PoolGeometry g = GeometryOf(spec, d);
  const std::int64_t in = d.h * d.w * d.c, out = d.oh * d.ow * d.c;
  ParallelFor(d.n, ImageGrain(d), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (ByteWinners(spec)) {
        loops_.max_pool_bytes(g, In(x) + i * in, Out(y) + i * out, static_cast<std::uint8_t*>(workspace) + i * out);
      } else {
        loops_.max_pool_words(g, In(x) + i * in, Out(y) + i * out, static_cast<std::int32_t*>(workspace) + i * out);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Pool2dBackward(const Pool2dSpec& spec, ConstTensor x, ConstTensor dy, const void* workspace,
                                        Tensor dx) {
  EK_ASSIGN_OR_RETURN(WindowDims d, CheckPool2dBackward(dtype(), spec, x, dy, workspace, dx));
  if (d.n == 0) return absl::OkStatus();
  if (spec.kind == Pool2dSpec::Kind::kAverage) return AveragePool(true, spec, d, dy.data, dx.data);
  const PoolGeometry g = GeometryOf(spec, d);
  const std::int64_t in = d.h * d.w * d.c, out = d.oh * d.ow * d.c;
  ParallelFor(d.n, ImageGrain(d), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* from = In(dy) + i * out;
      float* to = Out(dx) + i * in;
      if (ByteWinners(spec)) {
        loops_.max_pool_backward_bytes(g, from, static_cast<const std::uint8_t*>(workspace) + i * out, to);
      } else {
        loops_.max_pool_backward_words(g, from, static_cast<const std::int32_t*>(workspace) + i * out, to);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::GlobalAveragePool(ConstTensor x, Tensor y) {
  EK_ASSIGN_OR_RETURN(WindowDims d, CheckGlobalAveragePool(dtype(), x, y));
  const std::int64_t pixels = d.h * d.w;
  ParallelFor(d.n, ImageGrain(d), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      loops_.column_sums(pixels, d.c, d.c, In(x) + i * pixels * d.c, Out(y) + i * d.c);
    }
    loops_.scale((end - begin) * d.c, 1.0f / static_cast<float>(pixels), Out(y) + begin * d.c);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::GlobalAveragePoolBackward(ConstTensor dy, Tensor dx) {
  EK_ASSIGN_OR_RETURN(WindowDims d, CheckGlobalAveragePool(dtype(), dx, dy));
  const std::int64_t pixels = d.h * d.w;
  ParallelFor(d.n, ImageGrain(d), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* image = Out(dx) + i * pixels * d.c;
      std::copy_n(In(dy) + i * d.c, d.c, image);
      loops_.scale(d.c, 1.0f / static_cast<float>(pixels), image);
      for (std::int64_t p = 1; p < pixels; ++p) std::copy_n(image, d.c, image + p * d.c);
    }
  });
  return absl::OkStatus();
}

}  // namespace evenkeel::kernels::cpu
