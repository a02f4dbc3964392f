// The CPU backend: oneDNN for products, convolution, normalisation and average pooling, own vectorised loops for the
// rest. Max pooling is an own loop because oneDNN's passes over a NaN, which would hide a diverged model.
//
// Threading: one caller at a time, which takes part in OpenMP's pool; the pool has options.threads threads in all and
// regions do not nest. Small operations stay on the calling thread.
// Determinism: work is cut by shapes and the thread count alone, so equal calls give equal bits.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/checks.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"
#include "kernels/host_backend.h"

namespace evenkeel::kernels::cpu {

inline const float* In(const ConstTensor& tensor) { return static_cast<const float*>(tensor.data); }
inline float* Out(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

class CpuBackend : public HostBackend {
 public:
  explicit CpuBackend(int threads);

  std::string_view name() const override { return "cpu"; }
  DType dtype() const override { return DType::kFloat32; }
  std::string Fingerprint() const override;
  void WeightsChanged() override { ++weights_generation_; }
  std::int64_t scratch_bytes() const override { return static_cast<std::int64_t>(onednn_.scratchpad_bytes()); }

  absl::Status Dense(ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) override;
  absl::Status DenseBackward(ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx, Tensor dw, Tensor db) override;
  absl::Status SparseDense(const CsrView& x, ConstTensor w, ConstTensor b, Tensor y) override;
  absl::Status SparseDenseBackward(const CsrView& x, ConstTensor dy, Tensor dw, Tensor db) override;
  absl::Status Conv2d(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) override;
  absl::Status Conv2dBackward(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx,
                              Tensor dw, Tensor db) override;
  absl::StatusOr<std::size_t> Pool2dWorkspaceBytes(const Pool2dSpec& spec, const Shape& x) override;
  absl::Status Pool2d(const Pool2dSpec& spec, ConstTensor x, Tensor y, void* workspace) override;
  absl::Status Pool2dBackward(const Pool2dSpec& spec, ConstTensor x, ConstTensor dy, const void* workspace,
                              Tensor dx) override;
  absl::Status GlobalAveragePool(ConstTensor x, Tensor y) override;
  absl::Status GlobalAveragePoolBackward(ConstTensor dy, Tensor dx) override;
  absl::StatusOr<std::size_t> BatchNormMaskBytes(const Shape& x) override;
  absl::Status BatchNormTrain(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y, Tensor mean,
                              Tensor variance, void* relu_mask) override;
  absl::Status BatchNormInfer(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, ConstTensor mean,
                              ConstTensor variance, Tensor y) override;
  absl::Status BatchNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                 ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma, Tensor dbeta,
                                 const void* relu_mask) override;
  absl::Status LayerNorm(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y, Tensor mean,
                         Tensor variance) override;
  absl::Status LayerNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                 ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma, Tensor dbeta) override;
  absl::Status Activation(ActivationKind kind, ConstTensor x, Tensor y) override;
  absl::Status ActivationBackward(ActivationKind kind, ConstTensor x, ConstTensor y, ConstTensor dy,
                                  Tensor dx) override;
  absl::Status Dropout(double rate, std::span<const std::uint64_t> row_keys, ConstTensor x, Tensor y) override;
  absl::Status Add(ConstTensor a, ConstTensor b, Tensor y) override;
  absl::Status Accumulate(ConstTensor x, Tensor y) override;
  absl::Status Copy(ConstTensor x, Tensor y) override;
  absl::Status Fill(double value, Tensor y) override;
  absl::Status Scale(double factor, Tensor y) override;
  absl::Status Concat(std::span<const ConstTensor> inputs, Tensor y) override;
  absl::Status Split(ConstTensor y, std::span<const Tensor> outputs) override;
  absl::Status Loss(const LossSpec& spec, ConstTensor outputs, ConstTensor labels, Tensor loss,
                    Tensor gradient) override;
  absl::Status Softmax(ConstTensor x, Tensor y) override;
  absl::StatusOr<std::int64_t> CountNonFinite(ConstTensor x) override;

 private:
  // Sets the calling thread's OpenMP team, for oneDNN's regions as well as ours.
  void UseThreads() const;

  // Calls body(begin, end) on ranges that cover [0, count), cut at multiples of `unit`, on the pool if there is work
  // for two threads or more: `grain` is the least count worth a thread.
  template <class Body>
  void ParallelFor(std::int64_t count, std::int64_t grain, std::int64_t unit, const Body& body) const {
    if (count <= 0) return;
    if (threads_ == 1 || count < 2 * grain) return body(std::int64_t{0}, count);
    UseThreads();
    const std::int64_t units = (count + unit - 1) / unit;
    const std::int64_t pieces = std::min<std::int64_t>(threads_, count / grain);
    // Always the whole team: libgomp ends the threads that a smaller one leaves over.
#pragma omp parallel num_threads(threads_)
    for (std::int64_t piece = omp_get_thread_num(); piece < pieces; piece += omp_get_num_threads()) {
      const std::int64_t begin = units * piece / pieces * unit;
      const std::int64_t end = std::min(count, units * (piece + 1) / pieces * unit);
      if (begin < end) body(begin, end);
    }
  }

  absl::Status Product(const float* a, bool a_transposed, const float* b, bool b_transposed, const float* bias,
                       float* c, std::int64_t m, std::int64_t k, std::int64_t n);
  void ColumnSums(std::int64_t rows, std::int64_t columns, const float* x, float* sums) const;
  absl::Status BatchNormForward(bool training, double epsilon, const Shape& shape, const float* x, const float* gamma,
                                const float* beta, const void* mean, const void* variance, float* y, void* relu_mask);
  absl::Status AveragePool(bool backward, const Pool2dSpec& spec, const WindowDims& d, const void* from, void* to);

  const int threads_;
  const Loops& loops_;
  OneDnn onednn_;
  std::uint64_t weights_generation_ = 1;
};

// The first number of every cache key.
enum class Operation : std::int64_t {
  kProduct = 1,
  kConv,
  kConvBackwardData,
  kConvBackwardWeights,
  kAveragePool,
  kAveragePoolBackward,
  kBatchNorm,
  kBatchNormBackward,
  kLayerNorm,
  kLayerNormBackward,
};

}  // namespace evenkeel::kernels::cpu
