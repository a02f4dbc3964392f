// The operations that a device backend makes. Activations are row-major with the batch first; images are NHWC;
// convolution weights are [kernel_h, kernel_w, in_channels / groups, out_channels]. Gradients are sums over the batch.
//
// Operations are enqueued on the backend's one stream and complete in order; Synchronize() waits for all. The CPU
// backends complete before they return. Outputs alias no input unless an operation says so. Outputs are overwritten,
// never accumulated, unless an operation says so. All tensors of a call have the backend's dtype.
//
// A batch of 0 is allowed everywhere: nothing happens, gradients of parameters and statistics become 0.
//
// Threading: one caller at a time.
// Errors: kInvalidArgument when shapes do not fit, "[dense] x is [32,784] but w is [512,10]"; kUnimplemented where the
//         backend lacks the operation; kInternal from the library underneath.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/kernels/tensor.h"

namespace evenkeel {

struct Conv2dSpec {
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
  std::int64_t groups = 1;
  friend bool operator==(const Conv2dSpec&, const Conv2dSpec&) = default;
};

struct Pool2dSpec {
  enum class Kind : std::uint8_t { kMax, kAverage };  // the average leaves padding out
  Kind kind = Kind::kMax;
  std::int64_t kernel_h = 2, kernel_w = 2;
  std::int64_t stride_h = 2, stride_w = 2;
  std::int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
  friend bool operator==(const Pool2dSpec&, const Pool2dSpec&) = default;
};

enum class ActivationKind : std::uint8_t { kRelu, kGelu, kTanh, kSigmoid };  // gelu with erf

enum class LossKind : std::uint8_t {
  kSoftmaxCrossEntropy,  // logits [n, k], labels [n]: class indices; label_smoothing spreads over all k
  kSigmoidCrossEntropy,  // logits [n, k], labels [n, k] (or [n] when k is 1) in [0, 1]; summed over k; smoothing
                         // towards 1/2
  kMse,                  // predictions and labels [n, k]; mean over k
  kHuber,                // as kMse, with delta; 0.5 d^2 inside, delta (|d| - delta / 2) outside
  kHinge,                // binary: scores [n, 1], labels [n] in {0, 1} or {-1, 1}; multi-class: scores [n, k], labels
                         // [n] class indices, max(0, 1 + max_{j != y} s_j - s_y) (Crammer & Singer 2001)
};

struct LossSpec {
  LossKind kind = LossKind::kSoftmaxCrossEntropy;
  double label_smoothing = 0;
  double huber_delta = 1;
};

// Output extent of a convolution or pooling along one axis.
constexpr std::int64_t WindowOutput(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  return (in + pad - kernel) / stride + 1;
}

// Device memory; freed on destruction.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() const = 0;
  virtual std::size_t bytes() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu", "reference"
  virtual DType dtype() const = 0;
  // Backend, library version, instruction set and threads: equal fingerprints give equal bits for equal shapes.
  virtual std::string Fingerprint() const = 0;
  // True when data() of its buffers can be read and written by the host.
  virtual bool host_memory() const = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t bytes) = 0;  // zeroed, 64-byte aligned
  // Bytes that this process may still take where Allocate takes its own; others may be faster.
  virtual std::int64_t AvailableBytes() const = 0;
  // Bytes held besides what Allocate gave and copies of weights: they grow with the largest batch.
  virtual std::int64_t scratch_bytes() const = 0;
  virtual absl::Status CopyToDevice(std::span<const std::byte> host, void* device) = 0;
  virtual absl::Status CopyToHost(const void* device, std::span<std::byte> host) = 0;
  virtual absl::Status Synchronize() = 0;

  // Tells that weights may have changed in place: copies that a backend keeps (reordered weights) are stale.
  virtual void WeightsChanged() = 0;

  // y = x·w + b.  x [n, in]  w [in, out]  b [out], optional  y [n, out]
  virtual absl::Status Dense(ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) = 0;
  // dx [n, in], optional;  dw [in, out];  db [out], optional
  virtual absl::Status DenseBackward(ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx, Tensor dw, Tensor db) = 0;
  // As Dense with sparse rows x [n, in]; there is no dx.
  virtual absl::Status SparseDense(const CsrView& x, ConstTensor w, ConstTensor b, Tensor y) = 0;
  virtual absl::Status SparseDenseBackward(const CsrView& x, ConstTensor dy, Tensor dw, Tensor db) = 0;

  // x [n, h, w, c]  w [kh, kw, c / groups, out]  b [out], optional  y [n, oh, ow, out]
  virtual absl::Status Conv2d(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) = 0;
  // dx optional; db optional.
  virtual absl::Status Conv2dBackward(const Conv2dSpec& spec, ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx,
                                      Tensor dw, Tensor db) = 0;

  // x [n, h, w, c]  y [n, oh, ow, c].  The workspace carries what the backward pass needs (the winners); it may be null
  // where Pool2dWorkspaceBytes is 0. The first of equal values wins, a NaN over all. Padding is less than the kernel.
  virtual absl::StatusOr<std::size_t> Pool2dWorkspaceBytes(const Pool2dSpec& spec, const Shape& x) = 0;
  virtual absl::Status Pool2d(const Pool2dSpec& spec, ConstTensor x, Tensor y, void* workspace) = 0;
  virtual absl::Status Pool2dBackward(const Pool2dSpec& spec, ConstTensor x, ConstTensor dy, const void* workspace,
                                      Tensor dx) = 0;
  // Mean over h and w.  x [n, h, w, c]  y [n, c]
  virtual absl::Status GlobalAveragePool(ConstTensor x, Tensor y) = 0;
  virtual absl::Status GlobalAveragePoolBackward(ConstTensor dy, Tensor dx) = 0;

  // Per channel (last axis) over all other axes (Ioffe & Szegedy 2015, alg. 1); variance is biased.
  // x, y [..., c]  gamma, beta, mean, variance [c].  Training: mean and variance are outputs of this batch. Where
  // relu_mask is not null, y is max(0, ·) of it, and the mask, of BatchNormMaskBytes, says where that let it through;
  // a NaN may become 0 in y, never in the statistics of its channel.
  virtual absl::StatusOr<std::size_t> BatchNormMaskBytes(const Shape& x) = 0;
  virtual absl::Status BatchNormTrain(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y,
                                      Tensor mean, Tensor variance, void* relu_mask) = 0;
  virtual absl::Status BatchNormInfer(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta,
                                      ConstTensor mean, ConstTensor variance, Tensor y) = 0;
  // Gradients of BatchNormTrain; mean, variance and mask are those it gave.
  virtual absl::Status BatchNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                         ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma, Tensor dbeta,
                                         const void* relu_mask) = 0;
  // Over the last axis of [rows..., c] (Ba et al. 2016).  gamma, beta [c]  mean, variance [rows...]
  virtual absl::Status LayerNorm(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor beta, Tensor y,
                                 Tensor mean, Tensor variance) = 0;
  virtual absl::Status LayerNormBackward(double epsilon, ConstTensor x, ConstTensor gamma, ConstTensor mean,
                                         ConstTensor variance, ConstTensor dy, Tensor dx, Tensor dgamma,
                                         Tensor dbeta) = 0;

  // Elementwise; y may alias x, dx may alias dy. x and y are the forward pass's.
  virtual absl::Status Activation(ActivationKind kind, ConstTensor x, Tensor y) = 0;
  virtual absl::Status ActivationBackward(ActivationKind kind, ConstTensor x, ConstTensor y, ConstTensor dy,
                                          Tensor dx) = 0;
  // Keeps element j of row i when UnitFloat(word j % 4 of Philox(row_keys[i], 0, j / 4)) >= rate, scaled by
  // 1 / (1 - rate); else 0. Linear, so it serves forward (x to y) and backward (dy to dx). y may alias x.
  // x [n, ...], row_keys has n entries, in host memory.
  virtual absl::Status Dropout(double rate, std::span<const std::uint64_t> row_keys, ConstTensor x, Tensor y) = 0;

  virtual absl::Status Add(ConstTensor a, ConstTensor b, Tensor y) = 0;  // y may alias a or b
  virtual absl::Status Accumulate(ConstTensor x, Tensor y) = 0;          // y += x
  virtual absl::Status Copy(ConstTensor x, Tensor y) = 0;                // shapes may differ, element counts not
  virtual absl::Status Fill(double value, Tensor y) = 0;
  virtual absl::Status Scale(double factor, Tensor y) = 0;  // y *= factor
  // Along the last axis: y [..., sum of the inputs' last axes]; the split is its inverse.
  virtual absl::Status Concat(std::span<const ConstTensor> inputs, Tensor y) = 0;
  virtual absl::Status Split(ConstTensor y, std::span<const Tensor> outputs) = 0;

  // loss [n]: one value a sample. gradient: as outputs, d(sum of loss)/d(outputs); optional. See LossKind for labels.
  // A NaN output gives a NaN loss. Errors: on host memory also kInvalidArgument for a label that is no class index.
  virtual absl::Status Loss(const LossSpec& spec, ConstTensor outputs, ConstTensor labels, Tensor loss,
                            Tensor gradient) = 0;
  // Row-wise softmax, or elementwise sigmoid when k is 1, for predictions. y may alias x.
  virtual absl::Status Softmax(ConstTensor x, Tensor y) = 0;

  // Number of NaN and infinite elements. Synchronizes.
  virtual absl::StatusOr<std::int64_t> CountNonFinite(ConstTensor x) = 0;
};

// Plain loops, any host. For tests; kFloat64 serves gradient checks.
std::unique_ptr<Backend> MakeReferenceBackend(DType dtype);

struct CpuBackendOptions {
  int threads = 1;  // of this process; 1 to 256
};
// oneDNN and own vectorised loops, float32. Regions of OpenMP run on the calling thread and threads - 1 others.
// Errors: kInvalidArgument for threads.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace evenkeel
