// Dimensions of a dense row-major tensor.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "absl/container/inlined_vector.h"

namespace evenkeel {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : dims_(dims) {}
  explicit Shape(std::span<const std::int64_t> dims) : dims_(dims.begin(), dims.end()) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  // Negative i counts from the end.
  std::int64_t operator[](int i) const { return dims_[static_cast<size_t>(i < 0 ? rank() + i : i)]; }
  std::int64_t& operator[](int i) { return dims_[static_cast<size_t>(i < 0 ? rank() + i : i)]; }
  std::span<const std::int64_t> dims() const { return {dims_.data(), dims_.size()}; }
  // Product of the dimensions; 1 for a scalar.
  std::int64_t elements() const;
  // This shape behind a new first dimension, and without its first.
  Shape WithBatch(std::int64_t batch) const;
  Shape WithoutBatch() const;
  std::string ToString() const;  // "[32,784]"
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  absl::InlinedVector<std::int64_t, 5> dims_;
};

}  // namespace evenkeel
