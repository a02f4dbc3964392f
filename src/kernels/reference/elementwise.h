// Activations, dropout, joins in plain loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "evenkeel/core/random.h"
#include "evenkeel/kernels/backend.h"
#include "kernels/checks.h"

namespace evenkeel::kernels::reference {

template <class T>
T Sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

template <class T>
T Activate(ActivationKind kind, T x) {
  switch (kind) {
    case ActivationKind::kRelu:
      return x < 0 ? T{0} : x;  // a NaN stays one
    case ActivationKind::kGelu:
      return x * std::erfc(-x / std::numbers::sqrt2_v<T>) / 2;
    case ActivationKind::kTanh:
      return std::tanh(x);
    case ActivationKind::kSigmoid:
      return Sigmoid(x);
  }
  return x;
}

template <class T>
T ActivationSlope(ActivationKind kind, T x, T y) {
  switch (kind) {
    case ActivationKind::kRelu:
      return y <= 0 ? T{0} : T{1};
    case ActivationKind::kGelu:
      return std::erfc(-x / std::numbers::sqrt2_v<T>) / 2 +
             x * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
    case ActivationKind::kTanh:
      return 1 - y * y;
    case ActivationKind::kSigmoid:
      return y * (1 - y);
  }
  return T{1};
}

template <class T>
void Dropout(RowDims d, double rate, std::span<const std::uint64_t> row_keys, const T* x, T* y) {
  const T scale = static_cast<T>(1 / (1 - rate));
  for (std::int64_t row = 0; row < d.rows; ++row) {
    for (std::int64_t j = 0; j < d.columns; ++j) {
      const std::uint32_t word = Philox(row_keys[row], 0, static_cast<std::uint64_t>(j / 4))[j % 4];
      const std::int64_t at = row * d.columns + j;
      y[at] = UnitFloat(word) >= static_cast<float>(rate) ? x[at] * scale : T{0};
    }
  }
}

// Copies between the columns of `whole` and the parts beside one another in it.
template <class T>
void Concat(RowDims d, std::span<const ConstTensor> parts, T* whole) {
  std::int64_t first = 0;
  for (const ConstTensor& part : parts) {
    const std::int64_t width = part.shape[-1];
    for (std::int64_t i = 0; i < d.rows * width; ++i) {
      whole[i / width * d.columns + first + i % width] = part.as<T>()[i];
    }
    first += width;
  }
}

template <class T>
void Split(RowDims d, const T* whole, std::span<const Tensor> parts) {
  std::int64_t first = 0;
  for (const Tensor& part : parts) {
    const std::int64_t width = part.shape[-1];
    for (std::int64_t i = 0; i < d.rows * width; ++i) {
      part.as<T>()[i] = whole[i / width * d.columns + first + i % width];
    }
    first += width;
  }
}

}  // namespace evenkeel::kernels::reference
