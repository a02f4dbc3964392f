// How far the gradients of one step agree: the noise scale and the statistical efficiency.
//
// A step's n updates are means g_i over b_i samples each; G_B is the mean over all B samples. With G the gradient over
// all data and S the trace of one sample's covariance, a batch of b has E|g|^2 = G^2 + S/b (McCandlish et al. 2018, "An
// Empirical Model of Large-Batch Training", appendix A.1, which takes equal small batches). Here each small batch
// counts by its samples:
//   E sum(b_i |g_i|^2)/B = G^2 + n S/B,   E|G_B|^2 = G^2 + S/B
//   S   = (sum(b_i |g_i|^2) - B |G_B|^2) / (n - 1)
//   G^2 = |G_B|^2 - S/B
// Both are unbiased whatever the b_i are, S is the least squares estimate (g_i varies by S/b_i), and equal b_i give the
// published ones. The noise scale is B_simple = S/G^2 (eq. 2.9). It is a ratio of means over many steps, not a mean of
// ratios: one step's G^2 may well be negative.
//
// The statistical efficiency is the reciprocal of Scavenger's noise (Tyagi & Sharma 2023), mean |g_i|^2 / |G_B|^2, with
// the same weights: 1 where all updates are the same, 1/n where they have nothing in common.
//
// Threading: none; one caller at a time. Deterministic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace evenkeel {

// Of one update: of its summed gradient, not the mean.
struct UpdateNorm {
  std::int64_t samples = 0;
  double squared_sum = 0;
};

class GradientNoise {
 public:
  // Means over the steps; what a checkpoint keeps.
  struct State {
    std::int64_t steps = 0;
    double noise = 0;           // S
    double gradient = 0;        // G^2
    double update_squared = 0;  // sum(b_i |g_i|^2)/B
    double step_squared = 0;    // |G_B|^2
    friend bool operator==(const State&, const State&) = default;
  };

  // Means over all steps, and once there are `window` of them, moving ones with weight 1/window of the newest.
  // Requires window >= 1.
  explicit GradientNoise(std::int64_t window);

  // The updates that made a step, and the squared sum of all their gradients together. False, and nothing changes:
  // fewer than two updates, or values that are no norms.
  bool Observe(std::span<const UpdateNorm> updates, double squared_sum);

  // Samples. Nothing: not known, because no step was seen or noise hides the gradient.
  std::optional<double> NoiseScale() const;
  std::optional<double> Efficiency() const;
  std::int64_t steps() const { return state_.steps; }

  const State& Save() const { return state_; }
  // False, and nothing changes: these are no means of norms.
  bool Restore(const State& state);

 private:
  const std::int64_t window_;
  State state_;
};

}  // namespace evenkeel
