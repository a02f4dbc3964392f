// Shape checks that every backend makes before it computes, so that all refuse the same calls with the same words.
//
// Threading: none. Errors: kInvalidArgument, "[dense] x is [32,784] but w is [512,10]". Every dimension but the batch
// must be at least 1; a batch of 0 is allowed everywhere.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/kernels/tensor.h"

namespace evenkeel::kernels {

struct DenseDims {
  std::int64_t n = 0, in = 0, out = 0;
};

// Images [n, h, w, c] seen through windows of kernel_h x kernel_w, giving [n, oh, ow, out].
struct WindowDims {
  std::int64_t n = 0, h = 0, w = 0, c = 0;
  std::int64_t kernel_h = 0, kernel_w = 0;
  std::int64_t oh = 0, ow = 0, out = 0;
};

// A tensor as rows of its last axis.
struct RowDims {
  std::int64_t rows = 0, columns = 0;
};

absl::StatusOr<DenseDims> CheckDense(DType dtype, const ConstTensor& x, const ConstTensor& w, const ConstTensor& b,
                                     const ConstTensor& y);
absl::StatusOr<DenseDims> CheckDenseBackward(DType dtype, const ConstTensor& x, const ConstTensor& w,
                                             const ConstTensor& dy, const ConstTensor& dx, const ConstTensor& dw,
                                             const ConstTensor& db);
// Also checks that the matrix is well formed: offsets ascend, columns ascend within a row and lie in range.
absl::StatusOr<DenseDims> CheckSparseDense(DType dtype, const CsrView& x, const ConstTensor& w, const ConstTensor& b,
                                           const ConstTensor& y);
absl::StatusOr<DenseDims> CheckSparseDenseBackward(DType dtype, const CsrView& x, const ConstTensor& dy,
                                                   const ConstTensor& dw, const ConstTensor& db);

absl::StatusOr<WindowDims> CheckConv2d(DType dtype, const Conv2dSpec& spec, const ConstTensor& x, const ConstTensor& w,
                                       const ConstTensor& b, const ConstTensor& y);
absl::StatusOr<WindowDims> CheckConv2dBackward(DType dtype, const Conv2dSpec& spec, const ConstTensor& x,
                                               const ConstTensor& w, const ConstTensor& dy, const ConstTensor& dx,
                                               const ConstTensor& dw, const ConstTensor& db);

absl::StatusOr<WindowDims> CheckPool2dShape(const Pool2dSpec& spec, const Shape& x);
absl::StatusOr<WindowDims> CheckPool2d(DType dtype, const Pool2dSpec& spec, const ConstTensor& x, const ConstTensor& y,
                                       const void* workspace);
absl::StatusOr<WindowDims> CheckPool2dBackward(DType dtype, const Pool2dSpec& spec, const ConstTensor& x,
                                               const ConstTensor& dy, const void* workspace, const ConstTensor& dx);
absl::StatusOr<WindowDims> CheckGlobalAveragePool(DType dtype, const ConstTensor& x, const ConstTensor& y);

struct NormTensors {
  const ConstTensor& x;
  const ConstTensor& gamma;
  const ConstTensor& mean;
  const ConstTensor& variance;
};
// `more_like_x` are y, dy and dx; `more_like_gamma` beta, dgamma and dbeta.
absl::StatusOr<RowDims> CheckBatchNorm(DType dtype, double epsilon, const NormTensors& tensors,
                                       std::span<const ConstTensor> more_like_x,
                                       std::span<const ConstTensor> more_like_gamma);
absl::StatusOr<RowDims> CheckLayerNorm(DType dtype, double epsilon, const NormTensors& tensors,
                                       std::span<const ConstTensor> more_like_x,
                                       std::span<const ConstTensor> more_like_gamma);

// All have the dtype, the first's shape, and data.
absl::Status CheckSameShape(const char* operation, DType dtype, std::span<const ConstTensor> tensors);
absl::StatusOr<RowDims> CheckDropout(DType dtype, double rate, std::span<const std::uint64_t> row_keys,
                                     const ConstTensor& x, const ConstTensor& y);
absl::Status CheckCopy(DType dtype, const ConstTensor& x, const ConstTensor& y);
// Concat and Split: `whole` is the concatenation of the parts along the last axis.
absl::StatusOr<RowDims> CheckParts(const char* operation, DType dtype, std::span<const ConstTensor> parts,
                                   const ConstTensor& whole);
absl::Status CheckTensor(const char* operation, const char* name, DType dtype, const ConstTensor& tensor);

// Rows are samples, columns the outputs of one. Checks shapes, the spec's values and, on host memory, that labels which
// are class indices lie in [0, k).
absl::StatusOr<RowDims> CheckLoss(DType dtype, const LossSpec& spec, const ConstTensor& outputs,
                                  const ConstTensor& labels, const ConstTensor& loss, const ConstTensor& gradient);
absl::Status CheckHostLabels(const LossSpec& spec, RowDims dims, const ConstTensor& labels);
absl::StatusOr<RowDims> CheckSoftmax(DType dtype, const ConstTensor& x, const ConstTensor& y);

}  // namespace evenkeel::kernels
