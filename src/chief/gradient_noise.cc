#include "chief/gradient_noise.h"

#include <algorithm>
#include <cmath>

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

bool IsNorm(double squared) { return std::isfinite(squared) && squared >= 0; }

}  // namespace

GradientNoise::GradientNoise(std::int64_t window) : window_(window) { EK_CHECK(window >= 1); }

bool GradientNoise::Observe(std::span<const UpdateNorm> updates, double squared_sum) {
  if (updates.size() < 2 || !IsNorm(squared_sum)) return false;
  double samples = 0, weighted = 0;  // sum(b_i |g_i|^2)
  for (const UpdateNorm& update : updates) {
    if (update.samples <= 0 || !IsNorm(update.squared_sum)) return false;
    samples += static_cast<double>(update.samples);
    weighted += update.squared_sum / static_cast<double>(update.samples);
  }
  const double step_squared = squared_sum / (samples * samples);
  const double noise = (weighted - samples * step_squared) / static_cast<double>(updates.size() - 1);
  const double weight = 1 / static_cast<double>(std::min(++state_.steps, window_));
  const auto take = [weight](double& mean, double value) { mean += weight * (value - mean); };
  take(state_.noise, noise);
  take(state_.gradient, step_squared - noise / samples);
  take(state_.update_squared, weighted / samples);
  take(state_.step_squared, step_squared);
  return true;
}

std::optional<double> GradientNoise::NoiseScale() const {
  if (!(state_.gradient > 0)) return std::nullopt;
  return std::max(0.0, state_.noise) / state_.gradient;
}

std::optional<double> GradientNoise::Efficiency() const {
  if (!(state_.update_squared > 0)) return std::nullopt;
  return state_.step_squared / state_.update_squared;
}

bool GradientNoise::Restore(const State& state) {
  const bool finite = std::isfinite(state.noise) && std::isfinite(state.gradient);
  if (state.steps < 0 || !finite || !IsNorm(state.update_squared) || !IsNorm(state.step_squared)) return false;
  state_ = state;
  return true;
}

}  // namespace evenkeel
