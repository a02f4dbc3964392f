#include "ps/apply_kernels.h"

#include <cmath>

#include "ps/apply_loops.h"

namespace evenkeel::ps {
namespace {

using Count = std::int64_t;

const ApplyLoops& Loops() {
  static const ApplyLoops& loops = ChooseApplyLoops();
  return loops;
}

// As the loops' ftrl_root, for a power other than -0.5, which only the standard library knows.
void FtrlPower(float power, const StepNumbers& n, const StepArrays& a) {
  for (Count i = 0; i < a.count; ++i) {
    const float w = a.w[i];
    float g = (a.second != nullptr ? a.first[i] + a.second[i] : a.first[i]) * n.scale;
    if (n.clip > 0) {
      // Comparisons that keep a NaN.
      g = g > n.clip ? n.clip : g;
      g = g < -n.clip ? -n.clip : g;
    }
    if (n.l2 != 0) g += n.l2 * w;
    const float grown = a.s0[i] + g * g;
    const float root = std::pow(grown, -power);
    const float z = a.s1[i] + (g - (root - std::pow(a.s0[i], -power)) / n.rate * w);
    const float x = (z > 0 ? n.ftrl_l1 : -n.ftrl_l1) - z;
    const float y = root / n.rate + 2 * n.ftrl_l2;
    a.out[i] = std::fabs(z) > n.ftrl_l1 ? x / y * n.keep : 0.0f;
    a.s0[i] = grown;
    a.s1[i] = z;
  }
}

// Null for a loop that takes more than numbers and arrays.
ApplyLoops::StepLoop LoopOf(const OptimizerSpec& optimizer, bool two_slots) {
  const ApplyLoops& loops = Loops();
  switch (optimizer.kind) {
    case OptimizerSpec::Kind::kSgd:
      return loops.sgd;
    case OptimizerSpec::Kind::kMomentum:
      return loops.momentum;
    case OptimizerSpec::Kind::kNesterov:
      return loops.nesterov;
    case OptimizerSpec::Kind::kAdagrad:
      return loops.adagrad;
    case OptimizerSpec::Kind::kRmsprop:
      return two_slots ? loops.rmsprop_momentum : loops.rmsprop;
    case OptimizerSpec::Kind::kAdam:
    case OptimizerSpec::Kind::kAdamW:
      return loops.adam;
    case OptimizerSpec::Kind::kFtrl:
      return optimizer.ftrl_learning_rate_power == -0.5f ? loops.ftrl_root : nullptr;
  }
  return nullptr;
}

StepNumbers NumbersOf(const StepConstants& step, bool decay) {
  const OptimizerSpec& o = step.optimizer;
  return {.scale = step.gradient_scale,
          .clip = o.clip_value,
          .l2 = decay ? o.l2 : 0.0f,
          .rate = step.learning_rate,
          .keep = decay ? step.keep : 1.0f,
          .momentum = o.momentum,
          .rho = o.rho,
          .epsilon = o.epsilon,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .adam_step = step.adam_step,
          .adam_root_scale = step.adam_root_scale,
          .ftrl_l1 = o.ftrl_l1,
          .ftrl_l2 = o.ftrl_l2};
}

bool Aligned(const float* address) { return reinterpret_cast<std::uintptr_t>(address) % 64 == 0; }

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
  const ApplyLoops& loops = Loops();
  loops.sum(count, sources[0] + begin, sources.size() > 1 ? sources[1] + begin : nullptr, out);
  for (std::size_t s = 2; s < sources.size(); ++s) loops.sum(count, out, sources[s] + begin, out);
}

double SquaredSum(const float* values, std::int64_t count) { return Loops().squares(count, values); }

void OptimizerStep(const StepConstants& step, bool decay, std::int64_t count, GradientSum g, const float* w,
                   float* w_out, float* s0, float* s1, Destination destination) {
  const StepArrays arrays = {.count = count,
                             .first = g.first,
                             .second = g.second,
                             .w = w,
                             .out = w_out,
                             .s0 = s0,
                             .s1 = s1,
                             .past_caches = destination == Destination::kMemory && Aligned(w_out)};
  const StepNumbers numbers = NumbersOf(step, decay);
  if (ApplyLoops::StepLoop loop = LoopOf(step.optimizer, s1 != nullptr)) return loop(numbers, arrays);
  FtrlPower(step.optimizer.ftrl_learning_rate_power, numbers, arrays);
}

void StatisticStep(const StepConstants& step, float momentum, std::int64_t count, const float* sum, const float* w,
                   float* w_out) {
  Loops().statistic(count, momentum, step.mean_scale, sum, w, w_out);
}

void FinishSteps() { Loops().fence(); }

const ApplyLoops& ChooseApplyLoops() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
    return apply_avx512::kLoops;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return apply_avx2::kLoops;
#endif
  return apply_baseline::kLoops;
}

}  // namespace evenkeel::ps
