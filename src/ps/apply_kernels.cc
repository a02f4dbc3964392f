#include "ps/apply_kernels.h"

#include <algorithm>
#include <cmath>

// Sanitizers' runtimes are not up yet when the loader resolves clones.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define EK_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EK_CLONES
#endif

namespace evenkeel::ps {
namespace {

using Count = std::int64_t;

EK_CLONES void Copy(Count n, const float* a, float* out) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) out[i] = a[i];
}

EK_CLONES void Add(Count n, const float* a, float* out) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) out[i] += a[i];
}

EK_CLONES void Scale(Count n, float scale, float* g) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) g[i] *= scale;
}

EK_CLONES void Clip(Count n, float limit, float* g) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    // Comparisons that keep a NaN.
    float v = g[i];
    v = v > limit ? limit : v;
    g[i] = v < -limit ? -limit : v;
  }
}

EK_CLONES void AddScaled(Count n, float scale, const float* w, float* g) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) g[i] += scale * w[i];
}

// w' = keep w - lr g
EK_CLONES void Sgd(Count n, float lr, float keep, const float* g, const float* w, float* out) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) out[i] = w[i] * keep - lr * g[i];
}

// PyTorch's SGD (Sutskever et al. 2013, but with the rate outside): v = mu v + g; w' = keep w - lr v
EK_CLONES void Momentum(Count n, float lr, float keep, float mu, const float* g, const float* w, float* out, float* v) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    v[i] = mu * v[i] + g[i];
    out[i] = w[i] * keep - lr * v[i];
  }
}

// PyTorch's SGD(nesterov=True): v = mu v + g; w' = keep w - lr (g + mu v)
EK_CLONES void Nesterov(Count n, float lr, float keep, float mu, const float* g, const float* w, float* out, float* v) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    v[i] = mu * v[i] + g[i];
    out[i] = w[i] * keep - lr * (g[i] + mu * v[i]);
  }
}

// Duchi et al. 2011, as PyTorch's Adagrad: a += g^2; w' = keep w - lr g / (sqrt(a) + eps)
EK_CLONES void Adagrad(Count n, float lr, float keep, float eps, const float* g, const float* w, float* out, float* a) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    a[i] += g[i] * g[i];
    out[i] = w[i] * keep - lr * g[i] / (std::sqrt(a[i]) + eps);
  }
}

// Tieleman & Hinton 2012, as PyTorch's RMSprop: a = rho a + (1 - rho) g^2; w' = keep w - lr g / (sqrt(a) + eps)
EK_CLONES void Rmsprop(Count n, float lr, float keep, float rho, float eps, const float* g, const float* w, float* out,
                       float* a) {
  const float rest = 1 - rho;
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    a[i] = rho * a[i] + rest * (g[i] * g[i]);
    out[i] = w[i] * keep - lr * g[i] / (std::sqrt(a[i]) + eps);
  }
}

// With momentum: b = mu b + g / (sqrt(a) + eps); w' = keep w - lr b
EK_CLONES void RmspropMomentum(Count n, float lr, float keep, float rho, float eps, float mu, const float* g,
                               const float* w, float* out, float* a, float* b) {
  const float rest = 1 - rho;
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    a[i] = rho * a[i] + rest * (g[i] * g[i]);
    b[i] = mu * b[i] + g[i] / (std::sqrt(a[i]) + eps);
    out[i] = w[i] * keep - lr * b[i];
  }
}

// Kingma & Ba 2015, alg. 1; with `keep` Loshchilov & Hutter 2019, alg. 2. m = b1 m + (1 - b1) g;
// v = b2 v + (1 - b2) g^2; w' = keep w - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
EK_CLONES void Adam(Count n, float step, float root_scale, float keep, float b1, float b2, float eps, const float* g,
                    const float* w, float* out, float* m, float* v) {
  const float rest1 = 1 - b1, rest2 = 1 - b2;
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    m[i] = b1 * m[i] + rest1 * g[i];
    v[i] = b2 * v[i] + rest2 * (g[i] * g[i]);
    out[i] = w[i] * keep - step * m[i] / (std::sqrt(v[i]) * root_scale + eps);
  }
}

// McMahan et al. 2013, alg. 1, as TensorFlow's ApplyFtrl: sigma = (a'^-p - a^-p) / lr; z += g - sigma w;
// w' = |z| > l1 ? (sign(z) l1 - z) / (a'^-p / lr + 2 l2) : 0, with a' = a + g^2.
EK_CLONES void FtrlRoot(Count n, float lr, float keep, float l1, float l2, const float* g, const float* w, float* out,
                        float* a, float* z) {
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) {
    const float grown = a[i] + g[i] * g[i];
    const float root = std::sqrt(grown);
    const float z_new = z[i] + (g[i] - (root - std::sqrt(a[i])) / lr * w[i]);
    const float x = (z_new > 0 ? l1 : -l1) - z_new;
    const float y = root / lr + 2 * l2;
    const float value = x / y * keep;
    out[i] = std::fabs(z_new) > l1 ? value : 0.0f;
    a[i] = grown;
    z[i] = z_new;
  }
}

// The same for a power other than -0.5.
void FtrlPower(Count n, float power, float lr, float keep, float l1, float l2, const float* g, const float* w,
               float* out, float* a, float* z) {
  for (Count i = 0; i < n; ++i) {
    const float grown = a[i] + g[i] * g[i];
    const float root = std::pow(grown, -power);
    const float z_new = z[i] + (g[i] - (root - std::pow(a[i], -power)) / lr * w[i]);
    const float x = (z_new > 0 ? l1 : -l1) - z_new;
    const float y = root / lr + 2 * l2;
    out[i] = std::fabs(z_new) > l1 ? x / y * keep : 0.0f;
    a[i] = grown;
    z[i] = z_new;
  }
}

EK_CLONES void Statistic(Count n, float momentum, float mean_scale, const float* sum, const float* w, float* out) {
  const float rest = 1 - momentum;
#pragma GCC ivdep
  for (Count i = 0; i < n; ++i) out[i] = momentum * w[i] + rest * (sum[i] * mean_scale);
}

// Eight sums side by side, added in pairs at the end: an order that vectors of any width keep.
EK_CLONES double Squares(Count n, const float* values) {
  double sums[8] = {};
  Count i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const double v = values[i + j];
      sums[j] += v * v;
    }
  }
  for (int j = 0; i < n; ++i, ++j) sums[j] += static_cast<double>(values[i]) * values[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

StepConstants StepConstants::For(const OptimizerSpec& optimizer, double learning_rate, std::int64_t samples,
                                 double clip_scale, std::uint64_t step) {
  const auto t = static_cast<double>(step);
  const auto count = static_cast<double>(samples);
  StepConstants constants{.optimizer = optimizer};
  constants.learning_rate = static_cast<float>(learning_rate);
  constants.gradient_scale = static_cast<float>(clip_scale / count);
  constants.mean_scale = static_cast<float>(1 / count);
  constants.keep = static_cast<float>(1 - learning_rate * static_cast<double>(optimizer.weight_decay));
  constants.adam_step = static_cast<float>(learning_rate / (1 - std::pow(static_cast<double>(optimizer.beta1), t)));
  constants.adam_root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(optimizer.beta2), t)));
  return constants;
}

void SumSources(std::span<const float* const> sources, std::int64_t begin, std::int64_t count, float* out) {
  Copy(count, sources[0] + begin, out);
  for (const float* source : sources.subspan(1)) Add(count, source + begin, out);
}

double SquaredSum(const float* values, std::int64_t count) { return Squares(count, values); }

void OptimizerStep(const StepConstants& step, bool decay, std::int64_t n, float* g, const float* w, float* w_out,
                   float* s0, float* s1) {
  const OptimizerSpec& o = step.optimizer;
  const float lr = step.learning_rate;
  const float keep = decay ? step.keep : 1.0f;
  Scale(n, step.gradient_scale, g);
  if (o.clip_value > 0) Clip(n, o.clip_value, g);
  if (decay && o.l2 != 0) AddScaled(n, o.l2, w, g);
  switch (o.kind) {
    case OptimizerSpec::Kind::kSgd:
      return Sgd(n, lr, keep, g, w, w_out);
    case OptimizerSpec::Kind::kMomentum:
      return Momentum(n, lr, keep, o.momentum, g, w, w_out, s0);
    case OptimizerSpec::Kind::kNesterov:
      return Nesterov(n, lr, keep, o.momentum, g, w, w_out, s0);
    case OptimizerSpec::Kind::kAdagrad:
      return Adagrad(n, lr, keep, o.epsilon, g, w, w_out, s0);
    case OptimizerSpec::Kind::kRmsprop:
      if (s1 == nullptr) return Rmsprop(n, lr, keep, o.rho, o.epsilon, g, w, w_out, s0);
      return RmspropMomentum(n, lr, keep, o.rho, o.epsilon, o.momentum, g, w, w_out, s0, s1);
    case OptimizerSpec::Kind::kAdam:
    case OptimizerSpec::Kind::kAdamW:
      return Adam(n, step.adam_step, step.adam_root_scale, keep, o.beta1, o.beta2, o.epsilon, g, w, w_out, s0, s1);
    case OptimizerSpec::Kind::kFtrl:
      if (o.ftrl_learning_rate_power == -0.5f) return FtrlRoot(n, lr, keep, o.ftrl_l1, o.ftrl_l2, g, w, w_out, s0, s1);
      return FtrlPower(n, o.ftrl_learning_rate_power, lr, keep, o.ftrl_l1, o.ftrl_l2, g, w, w_out, s0, s1);
  }
}

void StatisticStep(const StepConstants& step, float momentum, std::int64_t n, const float* sum, const float* w,
                   float* w_out) {
  Statistic(n, momentum, step.mean_scale, sum, w, w_out);
}

}  // namespace evenkeel::ps
