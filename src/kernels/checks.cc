#include "kernels/checks.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/status.h"

namespace evenkeel::kernels {
namespace {

const char* Name(DType dtype) { return dtype == DType::kFloat32 ? "float32" : "float64"; }

template <class... Args>
absl::Status Invalid(const char* operation, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("[", operation, "] ", args...));
}

bool Present(const ConstTensor& tensor) { return tensor.data != nullptr; }

absl::Status CheckDims(const char* operation, const char* name, const Shape& shape, int rank) {
  if (rank >= 0 && shape.rank() != rank) {
    return Invalid(operation, name, " is ", shape.ToString(), "; it must have ", rank, " dimensions");
  }
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < 0 || (i > 0 && shape[i] == 0)) {
      return Invalid(operation, name, " is ", shape.ToString(), "; dimension ", i, " must be at least ", i > 0 ? 1 : 0);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRank(const char* operation, const char* name, DType dtype, const ConstTensor& tensor, int rank) {
  EK_RETURN_IF_ERROR(CheckDims(operation, name, tensor.shape, rank));
  return CheckTensor(operation, name, dtype, tensor);
}

// `tensor` must have just this shape; `against` says where it comes from.
absl::Status CheckShape(const char* operation, const char* name, DType dtype, const ConstTensor& tensor,
                        const Shape& expected, const char* other_name, const Shape& other) {
  if (tensor.shape != expected) {
    return Invalid(operation, other_name, " is ", other.ToString(), " but ", name, " is ", tensor.shape.ToString(),
                   "; it must be ", expected.ToString());
  }
  return CheckTensor(operation, name, dtype, tensor);
}

absl::Status CheckOptional(const char* operation, const char* name, DType dtype, const ConstTensor& tensor,
                           const Shape& expected, const char* other_name, const Shape& other) {
  return Present(tensor) ? CheckShape(operation, name, dtype, tensor, expected, other_name, other) : absl::OkStatus();
}

absl::StatusOr<DenseDims> DenseInputs(const char* operation, DType dtype, const ConstTensor& x, const ConstTensor& w) {
  EK_RETURN_IF_ERROR(CheckRank(operation, "x", dtype, x, 2));
  EK_RETURN_IF_ERROR(CheckRank(operation, "w", dtype, w, 2));
  if (x.shape[1] != w.shape[0] || w.shape[0] == 0) {
    return Invalid(operation, "x is ", x.shape.ToString(), " but w is ", w.shape.ToString());
  }
  return DenseDims{x.shape[0], w.shape[0], w.shape[1]};
}

absl::Status CheckCsr(const char* operation, const CsrView& x) {
  if (x.rows < 0 || x.columns_total < 1 || x.columns_total > INT32_MAX) {
    return Invalid(operation, "x is [", x.rows, ",", x.columns_total, "]; it needs at least 1 and at most ", INT32_MAX,
                   " columns");
  }
  if (x.row_offsets.size() != static_cast<std::size_t>(x.rows) + 1 || x.columns.size() != x.values.size()) {
    return Invalid(operation, "x has ", x.rows, " rows, ", x.row_offsets.size(), " row offsets, ", x.columns.size(),
                   " columns and ", x.values.size(), " values; offsets must be rows + 1, columns as many as values");
  }
  if (x.row_offsets.front() < 0 || x.row_offsets.back() > static_cast<std::int64_t>(x.values.size())) {
    return Invalid(operation, "x has row offsets ", x.row_offsets.front(), " to ", x.row_offsets.back(), " but ",
                   x.values.size(), " values");
  }
  for (std::int64_t row = 0; row < x.rows; ++row) {
    std::int64_t begin = x.row_offsets[row];
    std::int64_t end = x.row_offsets[row + 1];
    if (end < begin) return Invalid(operation, "row ", row, " of x ends at ", end, ", before it begins at ", begin);
    std::int64_t previous = -1;
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t column = x.columns[i];
      if (column <= previous || column >= x.columns_total) {
        return Invalid(operation, "row ", row, " of x has column ", column, " after ", previous,
                       "; columns must ascend and be below ", x.columns_total);
      }
      previous = column;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const char* operation, std::int64_t in, std::int64_t kernel, std::int64_t stride,
                         std::int64_t before, std::int64_t after, const char* axis) {
  if (stride < 1 || before < 0 || after < 0 || kernel < 1) {
    return Invalid(operation, axis, ": kernel ", kernel, ", stride ", stride, ", padding ", before, " and ", after,
                   "; kernel and stride must be at least 1, padding at least 0");
  }
  if (in + before + after < kernel) {
    return Invalid(operation, axis, ": the kernel has ", kernel, " but the input only ", in, " with padding ", before,
                   " and ", after);
  }
  return absl::OkStatus();
}

absl::StatusOr<WindowDims> ConvInputs(const char* operation, DType dtype, const Conv2dSpec& spec, const ConstTensor& x,
                                      const ConstTensor& w) {
  EK_RETURN_IF_ERROR(CheckRank(operation, "x", dtype, x, 4));
  EK_RETURN_IF_ERROR(CheckRank(operation, "w", dtype, w, 4));
  WindowDims d{.n = x.shape[0], .h = x.shape[1], .w = x.shape[2], .c = x.shape[3]};
  d.kernel_h = w.shape[0];
  d.kernel_w = w.shape[1];
  d.out = w.shape[3];
  if (spec.groups < 1 || d.c % spec.groups != 0 || d.out % spec.groups != 0) {
    return Invalid(operation, spec.groups, " groups must divide the ", d.c, " input and ", d.out, " output channels");
  }
  if (w.shape[2] != d.c / spec.groups) {
    return Invalid(operation, "x is ", x.shape.ToString(), " but w is ", w.shape.ToString(), " with ", spec.groups,
                   " groups; w's third dimension must be ", d.c / spec.groups);
  }
  EK_RETURN_IF_ERROR(CheckWindow(operation, d.h, d.kernel_h, spec.stride_h, spec.pad_top, spec.pad_bottom, "height"));
  EK_RETURN_IF_ERROR(CheckWindow(operation, d.w, d.kernel_w, spec.stride_w, spec.pad_left, spec.pad_right, "width"));
  d.oh = WindowOutput(d.h, d.kernel_h, spec.stride_h, spec.pad_top + spec.pad_bottom);
  d.ow = WindowOutput(d.w, d.kernel_w, spec.stride_w, spec.pad_left + spec.pad_right);
  return d;
}

absl::StatusOr<WindowDims> PoolShape(const char* operation, const Pool2dSpec& spec, const Shape& x) {
  EK_RETURN_IF_ERROR(CheckDims(operation, "x", x, 4));
  WindowDims d{.n = x[0], .h = x[1], .w = x[2], .c = x[3], .kernel_h = spec.kernel_h, .kernel_w = spec.kernel_w};
  EK_RETURN_IF_ERROR(CheckWindow(operation, d.h, d.kernel_h, spec.stride_h, spec.pad_top, spec.pad_bottom, "height"));
  EK_RETURN_IF_ERROR(CheckWindow(operation, d.w, d.kernel_w, spec.stride_w, spec.pad_left, spec.pad_right, "width"));
  // Else a window could lie wholly in the padding and have no element at all.
  if (spec.pad_top >= d.kernel_h || spec.pad_bottom >= d.kernel_h || spec.pad_left >= d.kernel_w ||
      spec.pad_right >= d.kernel_w) {
    return Invalid(operation, "padding ", spec.pad_top, ",", spec.pad_bottom, ",", spec.pad_left, ",", spec.pad_right,
                   " must be smaller than the kernel ", d.kernel_h, "x", d.kernel_w);
  }
  d.oh = WindowOutput(d.h, d.kernel_h, spec.stride_h, spec.pad_top + spec.pad_bottom);
  d.ow = WindowOutput(d.w, d.kernel_w, spec.stride_w, spec.pad_left + spec.pad_right);
  d.out = d.c;
  return d;
}

absl::StatusOr<RowDims> Rows(const char* operation, const char* name, const Shape& shape) {
  if (shape.rank() < 1) return Invalid(operation, name, " has no dimension");
  EK_RETURN_IF_ERROR(CheckDims(operation, name, shape, -1));
  RowDims dims{1, shape[-1]};
  for (int i = 0; i + 1 < shape.rank(); ++i) dims.rows *= shape[i];
  return dims;
}

absl::StatusOr<RowDims> CheckNorm(const char* operation, DType dtype, double epsilon, const NormTensors& t,
                                  const Shape& statistics, std::span<const ConstTensor> more_like_x,
                                  std::span<const ConstTensor> more_like_gamma) {
  EK_ASSIGN_OR_RETURN(RowDims dims, Rows(operation, "x", t.x.shape));
  if (!(epsilon > 0)) return Invalid(operation, "epsilon is ", epsilon, "; it must be positive");
  EK_RETURN_IF_ERROR(CheckTensor(operation, "x", dtype, t.x));
  const Shape channels = {dims.columns};
  EK_RETURN_IF_ERROR(CheckShape(operation, "gamma", dtype, t.gamma, channels, "x", t.x.shape));
  EK_RETURN_IF_ERROR(CheckShape(operation, "mean", dtype, t.mean, statistics, "x", t.x.shape));
  EK_RETURN_IF_ERROR(CheckShape(operation, "variance", dtype, t.variance, statistics, "x", t.x.shape));
  for (const ConstTensor& other : more_like_x) {
    EK_RETURN_IF_ERROR(CheckShape(operation, "y, dy or dx", dtype, other, t.x.shape, "x", t.x.shape));
  }
  for (const ConstTensor& other : more_like_gamma) {
    EK_RETURN_IF_ERROR(CheckShape(operation, "beta or a gradient", dtype, other, channels, "x", t.x.shape));
  }
  return dims;
}

const char* LossName(LossKind kind) {
  switch (kind) {
    case LossKind::kSoftmaxCrossEntropy:
      return "softmax_cross_entropy";
    case LossKind::kSigmoidCrossEntropy:
      return "sigmoid_cross_entropy";
    case LossKind::kMse:
      return "mse";
    case LossKind::kHuber:
      return "huber";
    case LossKind::kHinge:
      return "hinge";
  }
  return "loss";
}

template <class T>
absl::Status CheckClasses(const char* operation, std::span<const T> labels, std::int64_t classes) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    T label = labels[i];
    if (!(label >= 0 && label < static_cast<T>(classes)) || label != std::floor(label)) {
      return Invalid(operation, "the label of sample ", i, " is ", label, "; it must be a class index in [0,", classes,
                     ")");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensor(const char* operation, const char* name, DType dtype, const ConstTensor& tensor) {
  if (tensor.dtype != dtype) {
    return Invalid(operation, name, " is ", Name(tensor.dtype), "; this backend computes in ", Name(dtype));
  }
  if (tensor.data == nullptr && tensor.elements() > 0) {
    return Invalid(operation, name, " ", tensor.shape.ToString(), " has no data");
  }
  return absl::OkStatus();
}

absl::StatusOr<DenseDims> CheckDense(DType dtype, const ConstTensor& x, const ConstTensor& w, const ConstTensor& b,
                                     const ConstTensor& y) {
  EK_ASSIGN_OR_RETURN(DenseDims d, DenseInputs("dense", dtype, x, w));
  EK_RETURN_IF_ERROR(CheckOptional("dense", "b", dtype, b, {d.out}, "w", w.shape));
  EK_RETURN_IF_ERROR(CheckShape("dense", "y", dtype, y, {d.n, d.out}, "w", w.shape));
  return d;
}

absl::StatusOr<DenseDims> CheckDenseBackward(DType dtype, const ConstTensor& x, const ConstTensor& w,
                                             const ConstTensor& dy, const ConstTensor& dx, const ConstTensor& dw,
                                             const ConstTensor& db) {
  const char* operation = "dense backward";
  EK_ASSIGN_OR_RETURN(DenseDims d, DenseInputs(operation, dtype, x, w));
  EK_RETURN_IF_ERROR(CheckShape(operation, "dy", dtype, dy, {d.n, d.out}, "w", w.shape));
  EK_RETURN_IF_ERROR(CheckOptional(operation, "dx", dtype, dx, x.shape, "x", x.shape));
  EK_RETURN_IF_ERROR(CheckShape(operation, "dw", dtype, dw, w.shape, "w", w.shape));
  EK_RETURN_IF_ERROR(CheckOptional(operation, "db", dtype, db, {d.out}, "w", w.shape));
  return d;
}

absl::StatusOr<DenseDims> CheckSparseDense(DType dtype, const CsrView& x, const ConstTensor& w, const ConstTensor& b,
                                           const ConstTensor& y) {
  const char* operation = "sparse dense";
  EK_RETURN_IF_ERROR(CheckCsr(operation, x));
  EK_RETURN_IF_ERROR(CheckRank(operation, "w", dtype, w, 2));
  const Shape x_shape = {x.rows, x.columns_total};
  if (w.shape[0] != x.columns_total) {
    return Invalid(operation, "x is ", x_shape.ToString(), " but w is ", w.shape.ToString());
  }
  DenseDims d{x.rows, x.columns_total, w.shape[1]};
  EK_RETURN_IF_ERROR(CheckOptional(operation, "b", dtype, b, {d.out}, "w", w.shape));
  EK_RETURN_IF_ERROR(CheckShape(operation, "y", dtype, y, {d.n, d.out}, "x", x_shape));
  return d;
}

absl::StatusOr<DenseDims> CheckSparseDenseBackward(DType dtype, const CsrView& x, const ConstTensor& dy,
                                                   const ConstTensor& dw, const ConstTensor& db) {
  const char* operation = "sparse dense backward";
  EK_RETURN_IF_ERROR(CheckCsr(operation, x));
  EK_RETURN_IF_ERROR(CheckRank(operation, "dw", dtype, dw, 2));
  const Shape x_shape = {x.rows, x.columns_total};
  if (dw.shape[0] != x.columns_total) {
    return Invalid(operation, "x is ", x_shape.ToString(), " but dw is ", dw.shape.ToString());
  }
  DenseDims d{x.rows, x.columns_total, dw.shape[1]};
  EK_RETURN_IF_ERROR(CheckShape(operation, "dy", dtype, dy, {d.n, d.out}, "dw", dw.shape));
  EK_RETURN_IF_ERROR(CheckOptional(operation, "db", dtype, db, {d.out}, "dw", dw.shape));
  return d;
}

absl::StatusOr<WindowDims> CheckConv2d(DType dtype, const Conv2dSpec& spec, const ConstTensor& x, const ConstTensor& w,
                                       const ConstTensor& b, const ConstTensor& y) {
  EK_ASSIGN_OR_RETURN(WindowDims d, ConvInputs("conv2d", dtype, spec, x, w));
  EK_RETURN_IF_ERROR(CheckOptional("conv2d", "b", dtype, b, {d.out}, "w", w.shape));
  EK_RETURN_IF_ERROR(CheckShape("conv2d", "y", dtype, y, {d.n, d.oh, d.ow, d.out}, "x", x.shape));
  return d;
}

absl::StatusOr<WindowDims> CheckConv2dBackward(DType dtype, const Conv2dSpec& spec, const ConstTensor& x,
                                               const ConstTensor& w, const ConstTensor& dy, const ConstTensor& dx,
                                               const ConstTensor& dw, const ConstTensor& db) {
  const char* operation = "conv2d backward";
  EK_ASSIGN_OR_RETURN(WindowDims d, ConvInputs(operation, dtype, spec, x, w));
  EK_RETURN_IF_ERROR(CheckShape(operation, "dy", dtype, dy, {d.n, d.oh, d.ow, d.out}, "x", x.shape));
  EK_RETURN_IF_ERROR(CheckOptional(operation, "dx", dtype, dx, x.shape, "x", x.shape));
  EK_RETURN_IF_ERROR(CheckShape(operation, "dw", dtype, dw, w.shape, "w", w.shape));
  EK_RETURN_IF_ERROR(CheckOptional(operation, "db", dtype, db, {d.out}, "w", w.shape));
  return d;
}

absl::StatusOr<WindowDims> CheckPool2dShape(const Pool2dSpec& spec, const Shape& x) {
  return PoolShape("pool2d", spec, x);
}

absl::StatusOr<WindowDims> CheckPool2d(DType dtype, const Pool2dSpec& spec, const ConstTensor& x, const ConstTensor& y,
                                       const void* workspace) {
  EK_ASSIGN_OR_RETURN(WindowDims d, PoolShape("pool2d", spec, x.shape));
  EK_RETURN_IF_ERROR(CheckTensor("pool2d", "x", dtype, x));
  EK_RETURN_IF_ERROR(CheckShape("pool2d", "y", dtype, y, {d.n, d.oh, d.ow, d.c}, "x", x.shape));
  if (spec.kind == Pool2dSpec::Kind::kMax && workspace == nullptr && y.elements() > 0) {
    return Invalid("pool2d", "max pooling needs a workspace");
  }
  return d;
}

absl::StatusOr<WindowDims> CheckPool2dBackward(DType dtype, const Pool2dSpec& spec, const ConstTensor& x,
                                               const ConstTensor& dy, const void* workspace, const ConstTensor& dx) {
  const char* operation = "pool2d backward";
  EK_ASSIGN_OR_RETURN(WindowDims d, PoolShape(operation, spec, x.shape));
  EK_RETURN_IF_ERROR(CheckShape(operation, "dy", dtype, dy, {d.n, d.oh, d.ow, d.c}, "x", x.shape));
  EK_RETURN_IF_ERROR(CheckShape(operation, "dx", dtype, dx, x.shape, "x", x.shape));
  if (spec.kind == Pool2dSpec::Kind::kMax && workspace == nullptr && dy.elements() > 0) {
    return Invalid(operation, "max pooling needs the forward pass's workspace");
  }
  return d;
}

absl::StatusOr<WindowDims> CheckGlobalAveragePool(DType dtype, const ConstTensor& x, const ConstTensor& y) {
  const char* operation = "global average pool";
  EK_RETURN_IF_ERROR(CheckRank(operation, "x", dtype, x, 4));
  WindowDims d{.n = x.shape[0], .h = x.shape[1], .w = x.shape[2], .c = x.shape[3]};
  d.kernel_h = d.h;
  d.kernel_w = d.w;
  d.oh = d.ow = 1;
  d.out = d.c;
  EK_RETURN_IF_ERROR(CheckShape(operation, "y", dtype, y, {d.n, d.c}, "x", x.shape));
  return d;
}

absl::StatusOr<RowDims> CheckBatchNorm(DType dtype, double epsilon, const NormTensors& tensors,
                                       std::span<const ConstTensor> more_like_x,
                                       std::span<const ConstTensor> more_like_gamma) {
  const Shape& x = tensors.x.shape;
  const Shape statistics = x.rank() > 0 ? Shape{x[-1]} : Shape{};
  return CheckNorm("batch norm", dtype, epsilon, tensors, statistics, more_like_x, more_like_gamma);
}

absl::StatusOr<RowDims> CheckLayerNorm(DType dtype, double epsilon, const NormTensors& tensors,
                                       std::span<const ConstTensor> more_like_x,
                                       std::span<const ConstTensor> more_like_gamma) {
  std::span<const std::int64_t> dims = tensors.x.shape.dims();
  const Shape statistics = dims.empty() ? Shape{} : Shape(dims.first(dims.size() - 1));
  return CheckNorm("layer norm", dtype, epsilon, tensors, statistics, more_like_x, more_like_gamma);
}

absl::Status CheckSameShape(const char* operation, DType dtype, std::span<const ConstTensor> tensors) {
  for (const ConstTensor& tensor : tensors) {
    if (tensor.shape != tensors[0].shape) {
      return Invalid(operation, "tensors are ", tensors[0].shape.ToString(), " and ", tensor.shape.ToString(),
                     "; they must agree");
    }
    EK_RETURN_IF_ERROR(CheckTensor(operation, "a tensor", dtype, tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<RowDims> CheckDropout(DType dtype, double rate, std::span<const std::uint64_t> row_keys,
                                     const ConstTensor& x, const ConstTensor& y) {
  EK_RETURN_IF_ERROR(CheckSameShape("dropout", dtype, std::initializer_list<ConstTensor>{x, y}));
  if (!(rate >= 0 && rate < 1)) return Invalid("dropout", "the rate is ", rate, "; it must be in [0,1)");
  if (x.shape.rank() < 1 || x.shape[0] != static_cast<std::int64_t>(row_keys.size())) {
    return Invalid("dropout", "x is ", x.shape.ToString(), " but there are ", row_keys.size(), " row keys");
  }
  RowDims dims{x.shape[0], 1};
  for (int i = 1; i < x.shape.rank(); ++i) dims.columns *= x.shape[i];
  return dims;
}

absl::Status CheckCopy(DType dtype, const ConstTensor& x, const ConstTensor& y) {
  EK_RETURN_IF_ERROR(CheckTensor("copy", "x", dtype, x));
  EK_RETURN_IF_ERROR(CheckTensor("copy", "y", dtype, y));
  if (x.elements() == y.elements()) return absl::OkStatus();
  return Invalid("copy", "x is ", x.shape.ToString(), " but y is ", y.shape.ToString(), ": ", x.elements(), " and ",
                 y.elements(), " elements");
}

absl::StatusOr<RowDims> CheckParts(const char* operation, DType dtype, std::span<const ConstTensor> parts,
                                   const ConstTensor& whole) {
  EK_ASSIGN_OR_RETURN(RowDims dims, Rows(operation, "the whole", whole.shape));
  EK_RETURN_IF_ERROR(CheckTensor(operation, "the whole", dtype, whole));
  std::int64_t columns = 0;
  for (const ConstTensor& part : parts) {
    EK_RETURN_IF_ERROR(CheckTensor(operation, "a part", dtype, part));
    bool fits = part.shape.rank() == whole.shape.rank() && part.shape[-1] >= 1;
    for (int i = 0; fits && i + 1 < whole.shape.rank(); ++i) fits = part.shape[i] == whole.shape[i];
    if (!fits) {
      return Invalid(operation, "a part is ", part.shape.ToString(), " but the whole is ", whole.shape.ToString(),
                     "; only the last dimension may differ");
    }
    columns += part.shape[-1];
  }
  if (columns != dims.columns) {
    return Invalid(operation, "the parts' last dimensions sum to ", columns, " but the whole is ",
                   whole.shape.ToString());
  }
  return dims;
}

absl::StatusOr<RowDims> CheckLoss(DType dtype, const LossSpec& spec, const ConstTensor& outputs,
                                  const ConstTensor& labels, const ConstTensor& loss, const ConstTensor& gradient) {
  const char* operation = LossName(spec.kind);
  EK_RETURN_IF_ERROR(CheckRank(operation, "outputs", dtype, outputs, 2));
  RowDims d{outputs.shape[0], outputs.shape[1]};
  EK_RETURN_IF_ERROR(CheckTensor(operation, "labels", dtype, labels));
  const bool indices = spec.kind == LossKind::kSoftmaxCrossEntropy || spec.kind == LossKind::kHinge;
  const Shape one_each = {d.rows};
  const Shape column = {d.rows, 1};
  const bool fits = indices ? labels.shape == one_each || labels.shape == column
                            : labels.shape == outputs.shape || (d.columns == 1 && labels.shape == one_each);
  if (!fits) {
    return Invalid(operation, "outputs are ", outputs.shape.ToString(), " but labels are ", labels.shape.ToString(),
                   "; they must be ", (indices ? one_each : outputs.shape).ToString());
  }
  EK_RETURN_IF_ERROR(CheckShape(operation, "loss", dtype, loss, one_each, "outputs", outputs.shape));
  EK_RETURN_IF_ERROR(CheckOptional(operation, "gradient", dtype, gradient, outputs.shape, "outputs", outputs.shape));
  if (!(spec.label_smoothing >= 0 && spec.label_smoothing < 1)) {
    return Invalid(operation, "label smoothing is ", spec.label_smoothing, "; it must be in [0,1)");
  }
  if (spec.kind == LossKind::kHuber && !(spec.huber_delta > 0)) {
    return Invalid(operation, "delta is ", spec.huber_delta, "; it must be positive");
  }
  return d;
}

absl::Status CheckHostLabels(const LossSpec& spec, RowDims dims, const ConstTensor& labels) {
  const bool classes =
      spec.kind == LossKind::kSoftmaxCrossEntropy || (spec.kind == LossKind::kHinge && dims.columns > 1);
  if (!classes) return absl::OkStatus();
  const char* operation = LossName(spec.kind);
  return labels.dtype == DType::kFloat32 ? CheckClasses(operation, labels.as<float>(), dims.columns)
                                         : CheckClasses(operation, labels.as<double>(), dims.columns);
}

absl::StatusOr<RowDims> CheckSoftmax(DType dtype, const ConstTensor& x, const ConstTensor& y) {
  EK_RETURN_IF_ERROR(CheckSameShape("softmax", dtype, std::initializer_list<ConstTensor>{x, y}));
  return Rows("softmax", "x", x.shape);
}

}  // namespace evenkeel::kernels
