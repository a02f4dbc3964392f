#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "evenkeel/core/status.h"
#include "kernels/checks.h"
#include "kernels/host_backend.h"
#include "kernels/reference/elementwise.h"
#include "kernels/reference/linear.h"
#include "kernels/reference/losses.h"
#include "kernels/reference/normalization.h"
#include "kernels/reference/pooling.h"

namespace evenkeel {
namespace {

namespace k = kernels;
namespace ref = kernels::reference;
using Tensors = std::initializer_list<ConstTensor>;

template <class T>
const T* In(const ConstTensor& tensor) {
  return static_cast<const T*>(tensor.data);
}
template <class T>
T* Out(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

template <class T>
class ReferenceBackend : public k::HostBackend {
 public:
  std::string_view name() const override { return "reference"; }
  DType dtype() const override { return sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64; }
  std::string Fingerprint() const override { return sizeof(T) == 4 ? "reference float32" : "reference float64"; }
  void WeightsChanged() override {}

  absl::Status Dense(ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::DenseDims d, k::CheckDense(dtype(), x, w, b, y));
    ref::Dense(d, In<T>(x), In<T>(w), In<T>(b), Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status DenseBackward(ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx, Tensor dw, Tensor db) override {
    EK_ASSIGN_OR_RETURN(k::DenseDims d, k::CheckDenseBackward(dtype(), x, w, dy, dx, dw, db));
    ref::DenseBackward(d, In<T>(x), In<T>(w), In<T>(dy), Out<T>(dx), Out<T>(dw), Out<T>(db));
    return absl::OkStatus();
  }
  absl::Status SparseDense(const CsrView& x, ConstTensor w, ConstTensor b, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::DenseDims d, k::CheckSparseDense(dtype(), x, w, b, y));
    ref::SparseDense(d, x, In<T>(w), In<T>(b), Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status SparseDenseBackward(const CsrView& x, ConstTensor dy, Tensor dw, Tensor db) override {
    EK_ASSIGN_OR_RETURN(k::DenseDims d, k::CheckSparseDenseBackward(dtype(), x, dy, dw, db));
    ref::SparseDenseBackward(d, x, In<T>(dy), Out<T>(dw), Out<T>(db));
    return absl::OkStatus();
  }

  absl::Status Conv2d(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::WindowDims d, k::CheckConv2d(dtype(), spec, x, w, b, y));
    ref::Conv2d(spec, d, In<T>(x), In<T>(w), In<T>(b), Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status Conv2dBackward(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx,
                              Tensor dw, Tensor db) override {
    EK_ASSIGN_OR_RETURN(k::WindowDims d, k::CheckConv2dBackward(dtype(), spec, x, w, dy, dx, dw, db));
    ref::Conv2dBackward(spec, d, In<T>(x), In<T>(w), In<T>(dy), Out<T>(dx), Out<T>(dw), Out<T>(db));
    return absl::OkStatus();
  }

  absl::StatusOr<std::size_t> Pool2dWorkspaceBytes(const Pool2dSpec& spec, const Shape& x) override {
    EK_ASSIGN_OR_RETURN(k::WindowDims d, k::CheckPool2dShape(spec, x));
    if (spec.kind == Pool2dSpec::Kind::kAverage) return 0;
    return static_cast<std::size_t>(d.n * d.oh * d.ow * d.c) * sizeof(std::int32_t);
  }
  absl::Status Pool2d(const Pool2dSpec& spec, ConstTensor x, Tensor y, void* workspace) override {
    EK_ASSIGN_OR_RETURN(k::WindowDims d, k::CheckPool2d(dtype(), spec, x, y, workspace));
    ref::Pool2d(spec, d, In<T>(x), Out<T>(y), static_cast<std::int32_t*>(workspace));
    return absl::OkStatus();
  }
  absl::Status Pool2dBackward(const Pool2dSpec& spec, ConstTensor x, ConstTensor dy, const void* workspace,
                              Tensor dx) override {
    EK_ASSIGN_OR_RETURN(k::WindowDims d, k::CheckPool2dBackward(dtype(), spec, x, dy, workspace, dx));
    ref::Pool2dBackward(spec, d, In<T>(dy), static_cast<const std::int32_t*>(workspace), Out<T>(dx));
    return absl::OkStatus();
  }
  absl::Status GlobalAveragePool(ConstTensor x, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::WindowDims d, k::CheckGlobalAveragePool(dtype(), x, y));
    ref::GlobalAveragePool(d, In<T>(x), Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status GlobalAveragePoolBackward(ConstTensor dy, Tensor dx) override {
    EK_ASSIGN_OR_RETURN(k::WindowDims d, k::CheckGlobalAveragePool(dtype(), dx, dy));
    ref::GlobalAveragePoolBackward(d, In<T>(dy), Out<T>(dx));
    return absl::OkStatus();
  }

  absl::StatusOr<std::size_t> BatchNormMaskBytes(const Shape& x) override {
    return static_cast<std::size_t>(x.elements());
  }
  absl::Status BatchNormTrain(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y, Tensor mean,
                              Tensor variance, void* relu_mask) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d,
                        k::CheckBatchNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{y}, Tensors{beta}));
    ref::LineView lines = ref::BatchNormLines(d);
    ref::Statistics(lines, In<T>(x), Out<T>(mean), Out<T>(variance));
    ref::Normalize(lines, epsilon, In<T>(x), In<T>(gamma), In<T>(beta), In<T>(mean), In<T>(variance), Out<T>(y));
    if (relu_mask != nullptr) ref::MaskedRelu(y.elements(), Out<T>(y), static_cast<std::uint8_t*>(relu_mask));
    return absl::OkStatus();
  }
  absl::Status BatchNormInfer(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, ConstTensor mean,
                              ConstTensor variance, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d,
                        k::CheckBatchNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{y}, Tensors{beta}));
    ref::Normalize(ref::BatchNormLines(d), epsilon, In<T>(x), In<T>(gamma), In<T>(beta), In<T>(mean), In<T>(variance),
                   Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status BatchNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                 ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma, Tensor dbeta,
                                 const void* relu_mask) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d, k::CheckBatchNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{dy, dx},
                                                        Tensors{dgamma, dbeta}));
    std::vector<T> through;
    const T* gradient = In<T>(dy);
    if (relu_mask != nullptr) {
      through.assign(gradient, gradient + dy.elements());
      for (std::size_t i = 0; i < through.size(); ++i) {
        if (static_cast<const std::uint8_t*>(relu_mask)[i] == 0) through[i] = T{0};
      }
      gradient = through.data();
    }
    ref::NormBackward(ref::BatchNormLines(d), epsilon, In<T>(x), In<T>(gamma), In<T>(mean), In<T>(variance), gradient,
                      Out<T>(dx), Out<T>(dgamma), Out<T>(dbeta));
    return absl::OkStatus();
  }
  absl::Status LayerNorm(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y, Tensor mean,
                         Tensor variance) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d,
                        k::CheckLayerNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{y}, Tensors{beta}));
    ref::LineView lines = ref::LayerNormLines(d);
    ref::Statistics(lines, In<T>(x), Out<T>(mean), Out<T>(variance));
    ref::Normalize(lines, epsilon, In<T>(x), In<T>(gamma), In<T>(beta), In<T>(mean), In<T>(variance), Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status LayerNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                 ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma,
                                 Tensor dbeta) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d, k::CheckLayerNorm(dtype(), epsilon, {x, gamma, mean, variance}, Tensors{dy, dx},
                                                        Tensors{dgamma, dbeta}));
    ref::NormBackward(ref::LayerNormLines(d), epsilon, In<T>(x), In<T>(gamma), In<T>(mean), In<T>(variance), In<T>(dy),
                      Out<T>(dx), Out<T>(dgamma), Out<T>(dbeta));
    return absl::OkStatus();
  }

  absl::Status Activation(ActivationKind kind, ConstTensor x, Tensor y) override {
    EK_RETURN_IF_ERROR(k::CheckSameShape("activation", dtype(), Tensors{x, y}));
    for (std::int64_t i = 0; i < x.elements(); ++i) Out<T>(y)[i] = ref::Activate(kind, In<T>(x)[i]);
    return absl::OkStatus();
  }
  absl::Status ActivationBackward(ActivationKind kind, ConstTensor x, ConstTensor y, ConstTensor dy,
                                  Tensor dx) override {
    EK_RETURN_IF_ERROR(k::CheckSameShape("activation backward", dtype(), Tensors{x, y, dy, dx}));
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      Out<T>(dx)[i] = In<T>(dy)[i] * ref::ActivationSlope(kind, In<T>(x)[i], In<T>(y)[i]);
    }
    return absl::OkStatus();
  }
  absl::Status Dropout(double rate, std::span<const std::uint64_t> row_keys, ConstTensor x, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d, k::CheckDropout(dtype(), rate, row_keys, x, y));
    ref::Dropout(d, rate, row_keys, In<T>(x), Out<T>(y));
    return absl::OkStatus();
  }

  absl::Status Add(ConstTensor a, ConstTensor b, Tensor y) override {
    EK_RETURN_IF_ERROR(k::CheckSameShape("add", dtype(), Tensors{a, b, y}));
    for (std::int64_t i = 0; i < y.elements(); ++i) Out<T>(y)[i] = In<T>(a)[i] + In<T>(b)[i];
    return absl::OkStatus();
  }
  absl::Status Accumulate(ConstTensor x, Tensor y) override {
    EK_RETURN_IF_ERROR(k::CheckSameShape("accumulate", dtype(), Tensors{x, y}));
    for (std::int64_t i = 0; i < y.elements(); ++i) Out<T>(y)[i] += In<T>(x)[i];
    return absl::OkStatus();
  }
  absl::Status Copy(ConstTensor x, Tensor y) override {
    EK_RETURN_IF_ERROR(k::CheckCopy(dtype(), x, y));
    std::copy_n(In<T>(x), x.elements(), Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status Fill(double value, Tensor y) override {
    EK_RETURN_IF_ERROR(k::CheckTensor("fill", "y", dtype(), y));
    std::fill_n(Out<T>(y), y.elements(), static_cast<T>(value));
    return absl::OkStatus();
  }
  absl::Status Scale(double factor, Tensor y) override {
    EK_RETURN_IF_ERROR(k::CheckTensor("scale", "y", dtype(), y));
    for (std::int64_t i = 0; i < y.elements(); ++i) Out<T>(y)[i] *= static_cast<T>(factor);
    return absl::OkStatus();
  }
  absl::Status Concat(std::span<const ConstTensor> inputs, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d, k::CheckParts("concat", dtype(), inputs, y));
    ref::Concat(d, inputs, Out<T>(y));
    return absl::OkStatus();
  }
  absl::Status Split(ConstTensor y, std::span<const Tensor> outputs) override {
    const std::vector<ConstTensor> parts(outputs.begin(), outputs.end());
    EK_ASSIGN_OR_RETURN(k::RowDims d, k::CheckParts("split", dtype(), parts, y));
    ref::Split(d, In<T>(y), outputs);
    return absl::OkStatus();
  }

  absl::Status Loss(const LossSpec& spec, ConstTensor outputs, ConstTensor labels, Tensor loss,
                    Tensor gradient) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d, k::CheckLoss(dtype(), spec, outputs, labels, loss, gradient));
    EK_RETURN_IF_ERROR(k::CheckHostLabels(spec, d, labels));
    ref::Loss(spec, d, In<T>(outputs), In<T>(labels), Out<T>(loss), Out<T>(gradient));
    return absl::OkStatus();
  }
  absl::Status Softmax(ConstTensor x, Tensor y) override {
    EK_ASSIGN_OR_RETURN(k::RowDims d, k::CheckSoftmax(dtype(), x, y));
    for (std::int64_t n = 0; n < d.rows; ++n) {
      const T* row = In<T>(x) + n * d.columns;
      T* out = Out<T>(y) + n * d.columns;
      if (d.columns == 1) {
        out[0] = ref::Sigmoid(row[0]);
      } else {
        ref::SoftmaxRow(d.columns, row, out);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::int64_t> CountNonFinite(ConstTensor x) override {
    EK_RETURN_IF_ERROR(k::CheckTensor("count non-finite", "x", dtype(), x));
    return std::count_if(In<T>(x), In<T>(x) + x.elements(), [](T value) { return !std::isfinite(value); });
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend(DType dtype) {
  if (dtype == DType::kFloat64) return std::make_unique<ReferenceBackend<double>>();
  return std::make_unique<ReferenceBackend<float>>();
}

}  // namespace evenkeel
