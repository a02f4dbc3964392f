#include "chief/step_time_model.h"

#include <algorithm>
#include <cmath>

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr double kFirstSteps = 2;        // that the noise assumed is worth
constexpr double kAssumedNoise = 0.015;  // before anybody's steps tell, worth one of them
constexpr std::int64_t kSettledSteps = 10;
constexpr double kLeastNoise = 1e-4;         // keeps the equations well conditioned
constexpr double kLeastTestNoise = 0.05;     // smaller changes than this are left to the forgetting
constexpr double kNoiseMemory = 100;         // steps
constexpr double kRestartSteps = 10;         // that an old level is worth
constexpr double kClip = 4;                  // deviations at which a residual is clipped
constexpr std::int64_t kUnclippedSteps = 5;  // the first steps count in full: the level may be far off yet
constexpr std::int64_t kYoungSteps = 20;     // whose level is still a guess
constexpr double kWarmed = 0.3;              // a second step faster by this makes the first one a warm-up
constexpr double kShapeDoubt = 0.15;         // of fixed / t(b), added by a change
constexpr double kFade = 1e-4;               // of all information, by a step: shapes wander, if slowly
// Keeps per_sample positive: at least this part of t(b) grows with b.
constexpr double kLeastSlope = 1e-4;

}  // namespace

double StepTimeModel::noise() const {
  return std::max(kLeastNoise, std::sqrt((first_noise_ * first_noise_ * kFirstSteps + state_.residual_squares) /
                                         (kFirstSteps + state_.residual_weight)));
}

double StepTimeModel::Noise(double squares, double steps, double all_squares, double all_steps) {
  const double first = (kAssumedNoise * kAssumedNoise + all_squares) / (1 + all_steps);
  return std::max(kLeastNoise, std::sqrt((first * kFirstSteps + squares) / (kFirstSteps + steps)));
}

bool StepTimeModel::settled() const { return state_.observations >= kSettledSteps; }

double StepTimeModel::TestNoise() const {
  const double first = first_test_noise_ * first_test_noise_ * 2 * kFirstSteps;
  const double weight = 2 * kFirstSteps + state_.residual_weight;
  const double few = 1 + 4 / weight;  // an estimate from few steps may be much too small
  return std::max(kLeastTestNoise, std::sqrt((first + state_.residual_squares) / weight * few));
}

void StepTimeModel::AssumeNoise(double squares, double steps) {
  constexpr double kTestNoise = 0.15;  // worth four steps
  first_noise_ = std::sqrt((kAssumedNoise * kAssumedNoise + squares) / (1 + steps));
  first_test_noise_ = std::sqrt((kTestNoise * kTestNoise * 4 + squares) / (4 + steps));
}

StepTimeLine StepTimeModel::Belief::CautiousLine(double batch) const {
  const double fixed = std::max(0.0, line.fixed - 2 * std::sqrt(var_fixed));
  return {fixed, (line.At(batch) - fixed) / batch};
}

double StepTimeModel::Belief::Deviation(double batch) const {
  return std::sqrt(std::max(0.0, var_fixed + batch * (2 * covariance + batch * var_sample)));
}

double StepTimeModel::Variance(double batch) const {
  return var_fixed_ + batch * (2 * covariance_ + batch * var_sample_);
}

void StepTimeModel::Assume(StepTimeLine line) {
  EK_CHECK(line.per_sample > 0 && line.fixed >= 0);
  state_ = State{};
  state_.fixed = line.fixed;
  state_.per_sample = line.per_sample;
  testing_ = false;
}

bool StepTimeModel::Restore(const State& state) {
  for (double value : {state.fixed, state.info_fixed, state.info_sample, state.prior_deviation, state.residual_weight,
                       state.residual_squares}) {
    if (!(value >= 0) || !std::isfinite(value)) return false;
  }
  if (!(state.per_sample > 0) || !std::isfinite(state.per_sample)) return false;
  state_ = state;
  state_.observations = 0;
  testing_ = false;
  return true;
}

std::optional<double> StepTimeModel::Observe(std::int64_t batch, double seconds) {
  if (batch <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return std::nullopt;
  const auto size = static_cast<double>(batch);
  LearnNoise(size, seconds);
  // A first step that took long only warmed caches up.
  const bool warmed = state_.observations == 1 && seconds < kWarmed * Predict(size);
  if (state_.observations == 0 || warmed) {
    Start(size, seconds);
    return std::nullopt;
  }
  ++state_.observations;
  Solve(size);
  if (std::optional<double> ratio = Test(size, seconds)) return ratio;
  Learn(size, seconds);
  return std::nullopt;
}

void StepTimeModel::Start(double batch, double seconds) {
  double fixed_share = 0, spread = options_.fixed_share_spread;
  if (known()) {
    fixed_share = state_.fixed / Predict(batch);
    if (state_.prior_deviation > 0) spread = std::min(spread, state_.prior_deviation / Predict(batch) + kShapeDoubt);
  }
  ++state_.observations;
  Begin(batch, seconds, 1, fixed_share, spread);
}

// As after `steps` steps at `batch` that took `seconds` each, and a belief about the share of fixed costs.
void StepTimeModel::Begin(double batch, double seconds, double steps, double fixed_share, double spread) {
  const double weight = steps / (seconds * seconds);
  state_.info_fixed = weight;
  state_.info_cross = weight * batch;
  state_.info_sample = weight * batch * batch;
  state_.target_fixed = weight * seconds;
  state_.target_sample = weight * batch * seconds;
  state_.prior_fixed = fixed_share * seconds;
  state_.prior_deviation = spread * seconds;
  slower_ = faster_ = Side{};
  testing_ = false;
  Solve(batch);
}

void StepTimeModel::Learn(double batch, double seconds) {
  const double predicted = Predict(batch);
  const double variance = std::max(0.0, Variance(batch));
  const double step_noise = noise() * predicted, test_noise = TestNoise() * predicted;
  const double clip = kClip * std::sqrt(test_noise * test_noise + variance);
  double error = seconds - predicted;
  if (state_.observations > kUnclippedSteps) error = std::clamp(error, -clip, clip);

  // Kulhavý and Kárný: the information gains beta times this step's; negative where it holds more than forgetting
  // allows.
  const double leverage = std::max(variance / (step_noise * step_noise), 1e-6);
  const double beta = options_.forgetting - (1 - options_.forgetting) / leverage;
  const double weight = 1 / (predicted * predicted);
  const double target = weight * (beta * predicted + options_.forgetting * error);
  const auto gain = [](double& value, double by) { value = value * (1 - kFade) + by; };
  gain(state_.info_fixed, beta * weight);
  gain(state_.info_cross, beta * weight * batch);
  gain(state_.info_sample, beta * weight * batch * batch);
  gain(state_.target_fixed, target);
  gain(state_.target_sample, target * batch);
  Solve(batch);
}

// Coefficients and covariance from what the steps and the prior say.
void StepTimeModel::Solve(double batch) {
  const double noise_now = noise(), scale = 1 / (noise_now * noise_now);
  const double prior = 1 / (state_.prior_deviation * state_.prior_deviation);
  const double a = state_.info_fixed * scale + prior, b = state_.info_cross * scale, c = state_.info_sample * scale;
  const double determinant = a * c - b * b;
  if (!(determinant > 1e-12 * a * c)) {  // forgetting took more than there was, by rounding or by a new noise
    const double level = Predict(batch);
    Begin(batch, level, kRestartSteps, state_.fixed / level, options_.fixed_share_spread / 2);
    return;
  }
  var_fixed_ = c / determinant;
  covariance_ = -b / determinant;
  var_sample_ = a / determinant;
  const double x = state_.target_fixed * scale + prior * state_.prior_fixed, y = state_.target_sample * scale;
  state_.fixed = var_fixed_ * x + covariance_ * y;
  state_.per_sample = covariance_ * x + var_sample_ * y;
  Constrain(batch);
}

// From the difference of two steps at one batch (von Neumann, Annals of Mathematical Statistics 1941): what the model
// gets wrong is not noise.
void StepTimeModel::LearnNoise(double batch, double seconds) {
  if (batch == last_batch_) {
    const double bound = kClip * TestNoise();
    const double residual = std::clamp(std::log(seconds / last_seconds_) / std::sqrt(2.0), -bound, bound);
    state_.residual_squares += residual * residual;
    state_.residual_weight += 1;
    if (state_.residual_weight > kNoiseMemory) {
      state_.residual_squares *= kNoiseMemory / state_.residual_weight;
      state_.residual_weight = kNoiseMemory;
    }
  }
  last_batch_ = batch;
  last_seconds_ = seconds;
}

// To the nearest allowed coefficients in the metric of the covariance, which holds t where it is well known.
void StepTimeModel::Constrain(double batch) {
  if (state_.fixed < 0) {
    if (var_fixed_ > 0) state_.per_sample -= covariance_ / var_fixed_ * state_.fixed;
    state_.fixed = 0;
  }
  const double level = std::max(Predict(batch), 1e-12);
  const double least = kLeastSlope * level / batch;
  if (state_.per_sample < least) {
    if (var_sample_ > 0) {
      state_.fixed += covariance_ / var_sample_ * (least - state_.per_sample);
    }
    state_.fixed = std::max(state_.fixed, 0.0);
    state_.per_sample = least;
  }
}

std::optional<double> StepTimeModel::Test(double batch, double seconds) {
  const double predicted = Predict(batch);
  const double doubt = std::max(0.0, Variance(batch)) / (predicted * predicted), step_noise = TestNoise();
  const double deviation = std::sqrt(step_noise * step_noise + doubt);
  // Where the model itself is in doubt, a step teaches and tests nothing.
  if (doubt > step_noise * step_noise) {
    slower_ = faster_ = Side{};
    testing_ = false;
    return std::nullopt;
  }
  // What a few steps taught is no yardstick yet: it would be held against many.
  if (!testing_ || state_.observations <= kYoungSteps) before_ = state_;
  const double log_ratio = std::log(seconds / (before_.fixed + before_.per_sample * batch));
  const double score = std::clamp(log_ratio / deviation, -kClip, kClip);
  const auto add = [&](Side& side, double towards) {
    side.sum += towards - options_.change_slack;
    if (side.sum <= 0) {
      side = Side{};
      return;
    }
    side.log_ratios[side.steps++ % side.log_ratios.size()] = log_ratio;
  };
  add(slower_, score);
  add(faster_, -score);
  testing_ = slower_.sum > 0 || faster_.sum > 0;
  const Side& side = slower_.sum > faster_.sum ? slower_ : faster_;
  if (side.sum < options_.change_threshold) return std::nullopt;
  return Jump(batch, side);
}

double StepTimeModel::Jump(double batch, const Side& side) {
  // The change is where the steps since would be least likely without it: largest square of the sum over the count.
  double sum = 0, best = -1, log_ratio = 0, steps = 0;
  for (std::size_t back = 1; back <= std::min(side.steps, side.log_ratios.size()); ++back) {
    sum += side.log_ratios[(side.steps - back) % side.log_ratios.size()];
    const auto count = static_cast<double>(back);
    if (sum * sum / count <= best) continue;
    best = sum * sum / count;
    log_ratio = sum / count;
    steps = count;
  }
  const double ratio = std::exp(log_ratio);
  const std::int64_t observations = state_.observations;
  state_ = before_;  // as it was before the change could tint it
  state_.observations = observations;
  const double before = Predict(batch);
  const double shape = std::min(std::sqrt(var_fixed_) / before + kShapeDoubt, options_.fixed_share_spread);
  Begin(batch, ratio * before, steps, state_.fixed / before, shape);
  return ratio;
}

}  // namespace evenkeel
