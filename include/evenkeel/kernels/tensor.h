// Views of dense tensors and sparse matrices. A view owns nothing; memory belongs to whoever made it and outlives the
// operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "evenkeel/core/shape.h"

namespace evenkeel {

enum class DType : std::uint8_t { kFloat32, kFloat64 };
constexpr std::size_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 8; }

// Dense, row-major, in the backend's memory. data may be null where an operation says "optional".
struct Tensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * SizeOf(dtype); }
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data), static_cast<std::size_t>(elements())};
  }
};

struct ConstTensor {
  const void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
  ConstTensor() = default;
  ConstTensor(const void* d, Shape s, DType t) : data(d), shape(std::move(s)), dtype(t) {}
  ConstTensor(const Tensor& t) : data(t.data), shape(t.shape), dtype(t.dtype) {}  // NOLINT: a view of a view
  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * SizeOf(dtype); }
  template <class T>
  std::span<const T> as() const {
    return {static_cast<const T*>(data), static_cast<std::size_t>(elements())};
  }
};

// Compressed sparse rows, float32 values, in host memory. row_offsets has rows + 1 entries; columns ascend in a row.
struct CsrView {
  std::int64_t rows = 0;
  std::int64_t columns_total = 0;
  std::span<const std::int64_t> row_offsets;
  std::span<const std::int32_t> columns;
  std::span<const float> values;
};

}  // namespace evenkeel
