// Losses and their gradients, one sample at a time, in plain loops. `gradient` may be null. A NaN output gives a NaN
// loss.
#pragma once

#include <cmath>
#include <cstdint>

#include "evenkeel/kernels/backend.h"
#include "kernels/checks.h"

namespace evenkeel::kernels::reference {

// The larger; NaN if either is.
template <class T>
T MaxOrNan(T a, T b) {
  return b > a || std::isnan(b) ? b : a;
}

template <class T>
void SoftmaxRow(std::int64_t k, const T* x, T* y) {
  T peak = x[0];
  for (std::int64_t j = 1; j < k; ++j) peak = MaxOrNan(peak, x[j]);
  T sum = 0;
  for (std::int64_t j = 0; j < k; ++j) sum += std::exp(x[j] - peak);
  for (std::int64_t j = 0; j < k; ++j) y[j] = std::exp(x[j] - peak) / sum;
}

template <class T>
T SoftmaxCrossEntropy(double smoothing, std::int64_t k, const T* z, T label, T* gradient) {
  T peak = z[0];
  for (std::int64_t j = 1; j < k; ++j) peak = MaxOrNan(peak, z[j]);
  T sum = 0;
  for (std::int64_t j = 0; j < k; ++j) sum += std::exp(z[j] - peak);
  const T log_sum = peak + std::log(sum);
  const auto truth = static_cast<std::int64_t>(label);
  T loss = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    const T target = static_cast<T>((j == truth ? 1 - smoothing : 0) + smoothing / static_cast<double>(k));
    loss += target * (log_sum - z[j]);
    if (gradient != nullptr) gradient[j] = std::exp(z[j] - log_sum) - target;
  }
  return loss;
}

template <class T>
T SigmoidCrossEntropy(double smoothing, std::int64_t k, const T* z, const T* labels, T* gradient) {
  T loss = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    const T target = static_cast<T>(labels[j] * (1 - smoothing) + smoothing / 2);
    loss += MaxOrNan(T{0}, z[j]) - z[j] * target + std::log1p(std::exp(-std::abs(z[j])));
    if (gradient != nullptr) gradient[j] = 1 / (1 + std::exp(-z[j])) - target;
  }
  return loss;
}

template <class T>
T SquaredOrHuber(const LossSpec& spec, std::int64_t k, const T* outputs, const T* labels, T* gradient) {
  const T delta = static_cast<T>(spec.huber_delta);
  T loss = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    const T d = outputs[j] - labels[j];
    T slope = 0;
    if (spec.kind == LossKind::kMse) {
      loss += d * d;
      slope = 2 * d;
    } else if (std::abs(d) > delta) {
      loss += delta * (std::abs(d) - delta / 2);
      slope = d > 0 ? delta : -delta;
    } else {
      loss += d * d / 2;
      slope = d;
    }
    if (gradient != nullptr) gradient[j] = slope / static_cast<T>(k);
  }
  return loss / static_cast<T>(k);
}

template <class T>
T Hinge(std::int64_t k, const T* scores, T label, T* gradient) {
  if (k == 1) {
    const T sign = label > 0 ? T{1} : T{-1};
    const T margin = 1 - sign * scores[0];
    if (gradient != nullptr) gradient[0] = margin <= 0 ? T{0} : -sign;
    return margin <= 0 ? T{0} : margin;
  }
  const auto truth = static_cast<std::int64_t>(label);
  std::int64_t rival = truth == 0 ? 1 : 0;
  for (std::int64_t j = rival + 1; j < k; ++j) {
    if (j != truth && (scores[j] > scores[rival] || std::isnan(scores[j]))) rival = j;
  }
  const T margin = 1 + scores[rival] - scores[truth];
  if (gradient != nullptr) {
    for (std::int64_t j = 0; j < k; ++j) gradient[j] = T{0};
    if (!(margin <= 0)) {
      gradient[rival] = T{1};
      gradient[truth] = T{-1};
    }
  }
  return margin <= 0 ? T{0} : margin;
}

template <class T>
void Loss(const LossSpec& spec, RowDims d, const T* outputs, const T* labels, T* loss, T* gradient) {
  for (std::int64_t n = 0; n < d.rows; ++n) {
    const T* row = outputs + n * d.columns;
    T* slope = gradient != nullptr ? gradient + n * d.columns : nullptr;
    switch (spec.kind) {
      case LossKind::kSoftmaxCrossEntropy:
        loss[n] = SoftmaxCrossEntropy(spec.label_smoothing, d.columns, row, labels[n], slope);
        break;
      case LossKind::kSigmoidCrossEntropy:
        loss[n] = SigmoidCrossEntropy(spec.label_smoothing, d.columns, row, labels + n * d.columns, slope);
        break;
      case LossKind::kMse:
      case LossKind::kHuber:
        loss[n] = SquaredOrHuber(spec, d.columns, row, labels + n * d.columns, slope);
        break;
      case LossKind::kHinge:
        loss[n] = Hinge(d.columns, row, labels[n], slope);
        break;
    }
  }
}

}  // namespace evenkeel::kernels::reference
