#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "evenkeel/core/status.h"
#include "kernels/cpu/cpu_backend.h"

namespace evenkeel::kernels::cpu {
namespace {

using Tensors = std::initializer_list<ConstTensor>;

// Elements worth a second thread: a loop bound by memory, and one with transcendental functions.
constexpr std::int64_t kLightGrain = 16384;
constexpr std::int64_t kHeavyGrain = 4096;
constexpr std::int64_t kUnit = 16;  // a cache line

}  // namespace

absl::Status CpuBackend::Activation(ActivationKind kind, ConstTensor x, Tensor y) {
  EK_RETURN_IF_ERROR(CheckSameShape("activation", dtype(), Tensors{x, y}));
  auto* loop = kind == ActivationKind::kRelu   ? loops_.relu
               : kind == ActivationKind::kGelu ? loops_.gelu
               : kind == ActivationKind::kTanh ? loops_.tanh
                                               : loops_.sigmoid;
  const std::int64_t grain = kind == ActivationKind::kRelu ? kLightGrain : kHeavyGrain;
  ParallelFor(x.elements(), grain, kUnit,
              [&](std::int64_t begin, std::int64_t end) { loop(end - begin, In(x) + begin, Out(y) + begin); });
  return absl::OkStatus();
}

absl::Status CpuBackend::ActivationBackward(ActivationKind kind, ConstTensor x, ConstTensor y, ConstTensor dy,
                                            Tensor dx) {
  EK_RETURN_IF_ERROR(CheckSameShape("activation backward", dtype(), Tensors{x, y, dy, dx}));
  auto* loop = kind == ActivationKind::kRelu   ? loops_.relu_backward
               : kind == ActivationKind::kGelu ? loops_.gelu_backward
               : kind == ActivationKind::kTanh ? loops_.tanh_backward
                                               : loops_.sigmoid_backward;
  const float* of = kind == ActivationKind::kGelu ? In(x) : In(y);
  const std::int64_t grain = kind == ActivationKind::kGelu ? kHeavyGrain : kLightGrain;
  ParallelFor(x.elements(), grain, kUnit, [&](std::int64_t begin, std::int64_t end) {
    loop(end - begin, of + begin, In(dy) + begin, Out(dx) + begin);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Dropout(double rate, std::span<const std::uint64_t> row_keys, ConstTensor x, Tensor y) {
  EK_ASSIGN_OR_RETURN(RowDims d, CheckDropout(dtype(), rate, row_keys, x, y));
  const auto scale = static_cast<float>(1 / (1 - rate));
  ParallelFor(d.rows, std::max<std::int64_t>(1, kHeavyGrain / d.columns), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      loops_.dropout(d.columns, row_keys[row], static_cast<float>(rate), scale, In(x) + row * d.columns,
                     Out(y) + row * d.columns);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Add(ConstTensor a, ConstTensor b, Tensor y) {
  EK_RETURN_IF_ERROR(CheckSameShape("add", dtype(), Tensors{a, b, y}));
  ParallelFor(y.elements(), kLightGrain, kUnit, [&](std::int64_t begin, std::int64_t end) {
    loops_.add(end - begin, In(a) + begin, In(b) + begin, Out(y) + begin);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Accumulate(ConstTensor x, Tensor y) {
  EK_RETURN_IF_ERROR(CheckSameShape("accumulate", dtype(), Tensors{x, y}));
  return Add(x, y, y);
}

absl::Status CpuBackend::Copy(ConstTensor x, Tensor y) {
  EK_RETURN_IF_ERROR(CheckCopy(dtype(), x, y));
  ParallelFor(y.elements(), kLightGrain, kUnit, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(Out(y) + begin, In(x) + begin, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Fill(double value, Tensor y) {
  EK_RETURN_IF_ERROR(CheckTensor("fill", "y", dtype(), y));
  ParallelFor(y.elements(), kLightGrain, kUnit, [&](std::int64_t begin, std::int64_t end) {
    loops_.fill(end - begin, static_cast<float>(value), Out(y) + begin);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Scale(double factor, Tensor y) {
  EK_RETURN_IF_ERROR(CheckTensor("scale", "y", dtype(), y));
  ParallelFor(y.elements(), kLightGrain, kUnit, [&](std::int64_t begin, std::int64_t end) {
    loops_.scale(end - begin, static_cast<float>(factor), Out(y) + begin);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Concat(std::span<const ConstTensor> inputs, Tensor y) {
  EK_ASSIGN_OR_RETURN(RowDims d, CheckParts("concat", dtype(), inputs, y));
  ParallelFor(d.rows, std::max<std::int64_t>(1, kLightGrain / d.columns), 1, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;
    for (const ConstTensor& part : inputs) {
      const std::int64_t width = part.shape[-1];
      for (std::int64_t row = begin; row < end; ++row) {
        std::copy_n(In(part) + row * width, width, Out(y) + row * d.columns + first);
      }
      first += width;
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Split(ConstTensor y, std::span<const Tensor> outputs) {
  const absl::InlinedVector<ConstTensor, 8> parts(outputs.begin(), outputs.end());
  EK_ASSIGN_OR_RETURN(RowDims d, CheckParts("split", dtype(), {parts.data(), parts.size()}, y));
  ParallelFor(d.rows, std::max<std::int64_t>(1, kLightGrain / d.columns), 1, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;
    for (const Tensor& part : outputs) {
      const std::int64_t width = part.shape[-1];
      for (std::int64_t row = begin; row < end; ++row) {
        std::copy_n(In(y) + row * d.columns + first, width, Out(part) + row * width);
      }
      first += width;
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Loss(const LossSpec& spec, ConstTensor outputs, ConstTensor labels, Tensor loss,
                              Tensor gradient) {
  EK_ASSIGN_OR_RETURN(RowDims d, CheckLoss(dtype(), spec, outputs, labels, loss, gradient));
  EK_RETURN_IF_ERROR(CheckHostLabels(spec, d, labels));
  const std::int64_t k = d.columns;
  ParallelFor(d.rows, std::max<std::int64_t>(1, kHeavyGrain / k), 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin;
    const float* x = In(outputs) + begin * k;
    const float* classes = In(labels) + begin;
    const float* targets = In(labels) + begin * k;
    float* values = Out(loss) + begin;
    float* slopes = gradient.data != nullptr ? Out(gradient) + begin * k : nullptr;
    switch (spec.kind) {
      case LossKind::kSoftmaxCrossEntropy:
        return loops_.softmax_cross_entropy(rows, k, spec.label_smoothing, x, classes, values, slopes);
      case LossKind::kSigmoidCrossEntropy:
        return loops_.sigmoid_cross_entropy(rows, k, spec.label_smoothing, x, targets, values, slopes);
      case LossKind::kMse:
        return loops_.mse(rows, k, x, targets, values, slopes);
      case LossKind::kHuber:
        return loops_.huber(rows, k, static_cast<float>(spec.huber_delta), x, targets, values, slopes);
      case LossKind::kHinge:
        return loops_.hinge(rows, k, x, classes, values, slopes);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Softmax(ConstTensor x, Tensor y) {
  EK_ASSIGN_OR_RETURN(RowDims d, CheckSoftmax(dtype(), x, y));
  const std::int64_t k = d.columns;
  ParallelFor(d.rows, std::max<std::int64_t>(1, kHeavyGrain / k), 1, [&](std::int64_t begin, std::int64_t end) {
    loops_.softmax(end - begin, k, In(x) + begin * k, Out(y) + begin * k);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CpuBackend::CountNonFinite(ConstTensor x) {
  EK_RETURN_IF_ERROR(CheckTensor("count non-finite", "x", dtype(), x));
  std::atomic<std::int64_t> total{0};
  ParallelFor(x.elements(), kLightGrain, kUnit, [&](std::int64_t begin, std::int64_t end) {
    total += loops_.count_non_finite(end - begin, In(x) + begin);
  });
  return total.load();
}

}  // namespace evenkeel::kernels::cpu
