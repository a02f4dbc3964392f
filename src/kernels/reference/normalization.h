// Batch and layer norm in plain loops. Both normalise "lines": batch norm the columns of [rows, columns], layer norm
// the rows; `LineView` walks one line of either.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/checks.h"

namespace evenkeel::kernels::reference {

// Element i of line l lies at l * line_stride + i * element_stride; its channel is l or i.
struct LineView {
  std::int64_t lines, length, line_stride, element_stride;
  bool channel_is_line;
  std::int64_t At(std::int64_t line, std::int64_t i) const { return line * line_stride + i * element_stride; }
  std::int64_t Channel(std::int64_t line, std::int64_t i) const { return channel_is_line ? line : i; }
};

inline LineView BatchNormLines(RowDims d) { return {d.columns, d.rows, 1, d.columns, true}; }
inline LineView LayerNormLines(RowDims d) { return {d.rows, d.columns, d.columns, 1, false}; }

template <class T>
void Statistics(const LineView& view, const T* x, T* mean, T* variance) {
  for (std::int64_t l = 0; l < view.lines; ++l) {
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < view.length; ++i) sum += x[view.At(l, i)];
    const double center = view.length > 0 ? sum / static_cast<double>(view.length) : 0;
    for (std::int64_t i = 0; i < view.length; ++i) squares += std::pow(x[view.At(l, i)] - center, 2);
    mean[l] = static_cast<T>(center);
    variance[l] = static_cast<T>(view.length > 0 ? squares / static_cast<double>(view.length) : 0);
  }
}

template <class T>
void Normalize(const LineView& view, double epsilon, const T* x, const T* gamma, const T* beta, const T* mean,
               const T* variance, T* y) {
  for (std::int64_t l = 0; l < view.lines; ++l) {
    const double scale = 1 / std::sqrt(variance[l] + epsilon);
    for (std::int64_t i = 0; i < view.length; ++i) {
      const std::int64_t c = view.Channel(l, i);
      y[view.At(l, i)] = static_cast<T>((x[view.At(l, i)] - mean[l]) * scale * gamma[c] + beta[c]);
    }
  }
}

// y = max(0, y), and where it was above 0.
template <class T>
void MaskedRelu(std::int64_t count, T* y, std::uint8_t* mask) {
  for (std::int64_t i = 0; i < count; ++i) {
    mask[i] = y[i] > T{0} ? 1 : 0;
    if (y[i] <= T{0}) y[i] = T{0};
  }
}

// With h = (x - mean) / sqrt(variance + epsilon) and g = dy * gamma, each over a line of length m:
// dx = (g - sum(g) / m - h * sum(g * h) / m) / sqrt(variance + epsilon).
template <class T>
void NormBackward(const LineView& view, double epsilon, const T* x, const T* gamma, const T* mean, const T* variance,
                  const T* dy, T* dx, T* dgamma, T* dbeta) {
  const std::int64_t channels = view.channel_is_line ? view.lines : view.length;
  for (std::int64_t c = 0; c < channels; ++c) dgamma[c] = dbeta[c] = T{0};
  for (std::int64_t l = 0; l < view.lines; ++l) {
    const double scale = 1 / std::sqrt(variance[l] + epsilon);
    double sum = 0, product = 0;
    for (std::int64_t i = 0; i < view.length; ++i) {
      const std::int64_t at = view.At(l, i), c = view.Channel(l, i);
      const double h = (x[at] - mean[l]) * scale;
      sum += static_cast<double>(dy[at]) * gamma[c];
      product += static_cast<double>(dy[at]) * gamma[c] * h;
      dgamma[c] += static_cast<T>(dy[at] * h);
      dbeta[c] += dy[at];
    }
    const auto m = static_cast<double>(view.length);
    for (std::int64_t i = 0; i < view.length; ++i) {
      const std::int64_t at = view.At(l, i), c = view.Channel(l, i);
      const double h = (x[at] - mean[l]) * scale;
      dx[at] = static_cast<T>(scale * (static_cast<double>(dy[at]) * gamma[c] - sum / m - h * product / m));
    }
  }
}

}  // namespace evenkeel::kernels::reference
