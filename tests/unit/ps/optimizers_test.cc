// Every optimizer against the same formulas in double, element by element, over twenty steps.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "evenkeel/core/random.h"
#include "ps/apply_kernels.h"
#include "ps/apply_loops.h"

namespace evenkeel::ps {
namespace {

constexpr int kFloats = 37;  // no multiple of a vector
constexpr int kSteps = 20;
constexpr std::int64_t kSamples = 8;
constexpr double kRate = 0.05;
constexpr double kClipScale = 0.75;

// The reference: one element, in double. s0 and s1 are its slots.
double ReferenceStep(const OptimizerSpec& o, bool decay, int t, double sum, double w, double& s0, double& s1) {
  double g = sum * kClipScale / static_cast<double>(kSamples);
  if (o.clip_value > 0) g = std::clamp<double>(g, -o.clip_value, o.clip_value);
  if (decay) g += o.l2 * w;
  const double kept = decay ? w - kRate * o.weight_decay * w : w;
  const double mu = o.momentum, eps = o.epsilon;
  switch (o.kind) {
    case OptimizerSpec::Kind::kSgd:
      return kept - kRate * g;
    case OptimizerSpec::Kind::kMomentum:
      s0 = mu * s0 + g;
      return kept - kRate * s0;
    case OptimizerSpec::Kind::kNesterov:
      s0 = mu * s0 + g;
      return kept - kRate * (g + mu * s0);
    case OptimizerSpec::Kind::kAdagrad:
      s0 += g * g;
      return kept - kRate * g / (std::sqrt(s0) + eps);
    case OptimizerSpec::Kind::kRmsprop:
      s0 = o.rho * s0 + (1 - double{o.rho}) * g * g;
      if (o.momentum == 0) return kept - kRate * g / (std::sqrt(s0) + eps);
      s1 = mu * s1 + g / (std::sqrt(s0) + eps);
      return kept - kRate * s1;
    case OptimizerSpec::Kind::kAdam:
    case OptimizerSpec::Kind::kAdamW: {
      s0 = o.beta1 * s0 + (1 - double{o.beta1}) * g;
      s1 = o.beta2 * s1 + (1 - double{o.beta2}) * g * g;
      const double m = s0 / (1 - std::pow(double{o.beta1}, t));
      const double v = s1 / (1 - std::pow(double{o.beta2}, t));
      return kept - kRate * m / (std::sqrt(v) + eps);
    }
    case OptimizerSpec::Kind::kFtrl: {
      const double p = -double{o.ftrl_learning_rate_power};
      const double grown = s0 + g * g;
      s1 += g - (std::pow(grown, p) - std::pow(s0, p)) / kRate * w;
      s0 = grown;
      if (std::fabs(s1) <= o.ftrl_l1) return 0;
      const double value = ((s1 > 0 ? o.ftrl_l1 : -o.ftrl_l1) - s1) / (std::pow(grown, p) / kRate + 2 * o.ftrl_l2);
      return decay ? value * (1 - kRate * o.weight_decay) : value;
    }
  }
  return 0;
}

void Compare(const OptimizerSpec& optimizer, bool decay) {
  INFO(ToString(optimizer.kind) << (decay ? " with decay" : ""));
  const std::vector<std::string> names = SlotNames(optimizer);
  const float initial = !names.empty() && names[0] == "accumulator" ? optimizer.initial_accumulator : 0;
  Rng rng(7);
  std::vector<float> w(kFloats), w_next(kFloats), s0(kFloats, initial), s1(kFloats, 0);
  for (float& value : w) value = static_cast<float>(rng.NextNormal());
  std::vector<double> rw(w.begin(), w.end()), r0(kFloats, initial), r1(kFloats, 0);
  double moved = 0;
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<float> sum(kFloats);
    for (float& value : sum) value = static_cast<float>(8 * rng.NextNormal());
    for (int i = 0; i < kFloats; ++i) {
      const double before = rw[i];
      rw[i] = ReferenceStep(optimizer, decay, t, sum[i], before, r0[i], r1[i]);
      moved += std::fabs(rw[i] - before);
    }
    const StepConstants step =
        StepConstants::For(optimizer, kRate, kSamples, kClipScale, static_cast<std::uint64_t>(t));
    OptimizerStep(step, decay, kFloats, {sum.data()}, w.data(), w_next.data(), names.empty() ? nullptr : s0.data(),
                  names.size() < 2 ? nullptr : s1.data());
    w.swap(w_next);
  }
  CHECK(moved > 1);
  for (int i = 0; i < kFloats; ++i) {
    CHECK(w[i] == Approx(rw[i]).epsilon(2e-4).margin(2e-5));
  }
}

TEST_CASE("each optimizer follows its formula", "[ps]") {
  using Kind = OptimizerSpec::Kind;
  for (Kind kind : {Kind::kSgd, Kind::kMomentum, Kind::kNesterov, Kind::kAdagrad, Kind::kRmsprop, Kind::kAdam,
                    Kind::kAdamW, Kind::kFtrl}) {
    OptimizerSpec optimizer;
    optimizer.kind = kind;
    Compare(optimizer, true);
    optimizer.l2 = 0.03f;
    optimizer.weight_decay = 0.2f;
    optimizer.clip_value = 0.5f;
    Compare(optimizer, true);
    Compare(optimizer, false);
  }
  OptimizerSpec rmsprop;
  rmsprop.kind = Kind::kRmsprop;
  rmsprop.momentum = 0;
  Compare(rmsprop, true);
  OptimizerSpec ftrl;
  ftrl.kind = Kind::kFtrl;
  ftrl.ftrl_l1 = 0.4f;
  ftrl.ftrl_l2 = 0.1f;
  Compare(ftrl, true);
  ftrl.ftrl_learning_rate_power = -0.7f;
  Compare(ftrl, true);
}

TEST_CASE("a float's bits do not depend on its place in a vector, nor on writing in place", "[ps]") {
  using Kind = OptimizerSpec::Kind;
  for (Kind kind : {Kind::kNesterov, Kind::kRmsprop, Kind::kAdamW, Kind::kFtrl}) {
    OptimizerSpec optimizer;
    optimizer.kind = kind;
    optimizer.weight_decay = 0.1f;
    const StepConstants step = StepConstants::For(optimizer, kRate, kSamples, 1, 3);
    constexpr int kCount = 67;
    std::vector<float> g(kCount), w(kCount), a(kCount, 0.3f), b(kCount, 0.1f), out(kCount);
    Rng rng(3);
    for (float& value : g) value = static_cast<float>(rng.NextNormal());
    for (float& value : w) value = static_cast<float>(rng.NextNormal());
    auto single = [&](int i) {
      float gi = g[i], wi = w[i], ai = a[i], bi = b[i];
      OptimizerStep(step, true, 1, {&gi}, &wi, &wi, &ai, &bi);
      return wi;
    };
    std::vector<float> alone;
    for (int i = 0; i < kCount; ++i) alone.push_back(single(i));
    OptimizerStep(step, true, kCount, {g.data()}, w.data(), out.data(), a.data(), b.data());
    CHECK(out == alone);
  }
}

TEST_CASE("all instruction sets give the same bits, also past the caches and from a sum in two parts", "[ps]") {
  std::vector<const ApplyLoops*> tables = {&apply_baseline::kLoops};
  if (&ChooseApplyLoops() != &apply_baseline::kLoops) tables.push_back(&apply_avx2::kLoops);
  if (&ChooseApplyLoops() == &apply_avx512::kLoops) tables.push_back(&apply_avx512::kLoops);
  constexpr std::int64_t kCount = 3 * 1024 + 13;
  struct Run {
    alignas(64) float first[kCount], second[kCount], sum[kCount], w[kCount], out[kCount], s0[kCount], s1[kCount];
  };
  auto fresh = [] {
    auto run = std::make_unique<Run>();
    Rng rng(11);
    for (std::int64_t i = 0; i < kCount; ++i) {
      for (float* array : {run->first, run->second, run->w, run->s1}) array[i] = static_cast<float>(rng.NextNormal());
      run->s0[i] = std::fabs(static_cast<float>(rng.NextNormal()));
      run->s1[i] = std::fabs(run->s1[i]);
      run->sum[i] = run->first[i] + run->second[i];
    }
    return run;
  };
  const StepNumbers numbers = {.scale = 0.125f,
                               .clip = 0.2f,
                               .l2 = 0.01f,
                               .rate = 0.1f,
                               .keep = 0.99f,
                               .momentum = 0.9f,
                               .rho = 0.8f,
                               .epsilon = 1e-6f,
                               .beta1 = 0.9f,
                               .beta2 = 0.99f,
                               .adam_step = 0.3f,
                               .adam_root_scale = 1.7f,
                               .ftrl_l1 = 0.3f,
                               .ftrl_l2 = 0.1f};
  using Loop = ApplyLoops::StepLoop ApplyLoops::*;
  for (Loop loop : {&ApplyLoops::sgd, &ApplyLoops::momentum, &ApplyLoops::nesterov, &ApplyLoops::adagrad,
                    &ApplyLoops::rmsprop, &ApplyLoops::rmsprop_momentum, &ApplyLoops::adam, &ApplyLoops::ftrl_root}) {
    const auto wanted = fresh();
    (tables[0]->*loop)(numbers, {.count = kCount,
                                 .first = wanted->sum,
                                 .w = wanted->w,
                                 .out = wanted->out,
                                 .s0 = wanted->s0,
                                 .s1 = wanted->s1});
    CHECK(std::memcmp(wanted->out, wanted->w, sizeof(wanted->w)) != 0);
    for (const ApplyLoops* table : tables) {
      INFO(table->isa);
      for (bool past_caches : {false, true}) {
        const auto run = fresh();
        (table->*loop)(numbers, {.count = kCount,
                                 .first = run->first,
                                 .second = run->second,
                                 .w = run->w,
                                 .out = run->out,
                                 .s0 = run->s0,
                                 .s1 = run->s1,
                                 .past_caches = past_caches});
        table->fence();
        CHECK(std::memcmp(run->out, wanted->out, sizeof(run->out)) == 0);
        CHECK(std::memcmp(run->s0, wanted->s0, sizeof(run->s0)) == 0);
        CHECK(std::memcmp(run->s1, wanted->s1, sizeof(run->s1)) == 0);
      }
    }
  }
}

TEST_CASE("sources are added in their order", "[ps]") {
  const float big = 16777216, one = 1;
  std::vector<float> a(40, big), b(40, one), c(40, -big), out(40);
  const float* sources[] = {a.data(), b.data(), c.data()};
  SumSources(sources, 0, 40, out.data());
  CHECK(out == std::vector<float>(40, (big + one) - big));
  const float* other[] = {a.data(), c.data(), b.data()};
  SumSources(other, 0, 40, out.data());
  CHECK(out == std::vector<float>(40, one));
}

TEST_CASE("clipping by value keeps a NaN", "[ps]") {
  OptimizerSpec optimizer;
  optimizer.clip_value = 1;
  const StepConstants step = StepConstants::For(optimizer, 1, 1, 1, 1);
  float g[3] = {NAN, 5, -5}, w[3] = {0, 0, 0};
  OptimizerStep(step, false, 3, {g}, w, w, nullptr, nullptr);
  CHECK(std::isnan(w[0]));
  CHECK(w[1] == -1);
  CHECK(w[2] == 1);
}

}  // namespace
}  // namespace evenkeel::ps
