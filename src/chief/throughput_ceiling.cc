#include "chief/throughput_ceiling.h"

#include <algorithm>
#include <cmath>

namespace evenkeel {
namespace {

constexpr int kSteps = 3;      // that decide
constexpr int kLateSteps = 5;  // beyond the ceiling although it is set: it cannot be kept

}  // namespace

ThroughputCeiling::Verdict ThroughputCeiling::Observe(std::int64_t batch, double seconds, const StepTimeModel& model) {
  if (batch <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return Verdict::kLearn;
  if (model.observations() == 0) {
    good_ = ceiling_ > 0 ? std::min(batch, ceiling_) : batch;
    if (ceiling_ > 0) phase_ = Phase::kHeld;
    return Verdict::kLearn;
  }
  if (phase_ == Phase::kTrial) return ObserveTrial(batch, seconds);
  if (phase_ == Phase::kHeld && ++held_steps_ >= retry_steps_) {
    ceiling_ += (ceiling_ + 3) / 4;
    held_steps_ = 0;
    retry_steps_ *= 2;
  }
  return batch > good_ ? ObserveBeyond(batch, seconds, model) : Verdict::kLearn;
}

ThroughputCeiling::Verdict ThroughputCeiling::ObserveBeyond(std::int64_t batch, double seconds,
                                                            const StepTimeModel& model) {
  const auto good = static_cast<double>(good_);
  const double excess = std::log(seconds / static_cast<double>(batch) / (model.Predict(good) / good));
  const double most = std::log(collapse_factor_);
  if (excess <= most) {
    dear_ = 0;
    dear_log_ = 0;
    if (++fine_ >= kSteps) {
      good_ = batch;
      fine_ = 0;
      retry_steps_ = first_retry_steps_;
    }
    return Verdict::kLearn;
  }
  fine_ = 0;
  dear_log_ += excess;
  if (++dear_ < kSteps) return Verdict::kHoldBack;
  const double mean = dear_log_ / dear_;
  dear_ = 0;
  dear_log_ = 0;
  const double noise = model.TestNoise(), doubt = model.Deviation(good) / model.Predict(good);
  if (mean < most + 3 * std::sqrt(noise * noise / kSteps + doubt * doubt)) return Verdict::kLearn;
  ceiling_ = good_;
  phase_ = Phase::kTrial;
  dear_log_ = mean;
  line_ = model.line();
  trial_ = late_ = 0;
  trial_log_ = 0;
  return Verdict::kSuspected;
}

ThroughputCeiling::Verdict ThroughputCeiling::ObserveTrial(std::int64_t batch, double seconds) {
  bool refuted = false;
  if (batch > good_) {
    if (++late_ < kLateSteps) return Verdict::kHoldBack;
    good_ = batch;
    refuted = true;
  } else {
    trial_log_ += std::log(seconds / line_.At(static_cast<double>(batch)));
    if (++trial_ < kSteps) return Verdict::kLearn;
    refuted = trial_log_ / kSteps > dear_log_ / 2;
  }
  dear_log_ = 0;
  held_steps_ = 0;
  phase_ = refuted ? Phase::kFree : Phase::kHeld;
  if (!refuted) return Verdict::kLearn;
  ceiling_ = 0;
  return Verdict::kRefuted;
}

}  // namespace evenkeel
