#include "chief/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace evenkeel {
namespace {

double InUnits(ScheduleConfig::Unit unit, std::int64_t commits, std::int64_t samples, std::int64_t samples_per_epoch) {
  switch (unit) {
    case ScheduleConfig::Unit::kCommits:
      return static_cast<double>(commits);
    case ScheduleConfig::Unit::kSamples:
      return static_cast<double>(samples);
    case ScheduleConfig::Unit::kEpochs:
      return static_cast<double>(samples) / static_cast<double>(samples_per_epoch);
  }
  return 0;
}

}  // namespace

double LearningRate(const ScheduleConfig& schedule, const TrainingLength& length, Progress progress) {
  const double x = InUnits(schedule.unit, progress.commits, progress.samples, length.samples_per_epoch);
  const double lr = schedule.learning_rate;
  if (x < schedule.warmup) {
    return lr * (schedule.warmup_start + (1 - schedule.warmup_start) * x / schedule.warmup);
  }
  const double since = x - schedule.warmup;
  double total = schedule.total;
  if (total <= 0) total = InUnits(schedule.unit, length.commits, length.samples, length.samples_per_epoch);
  const double span = total - schedule.warmup;
  const double done = span > 0 ? std::clamp(since / span, 0.0, 1.0) : 1.0;
  switch (schedule.kind) {
    case ScheduleConfig::Kind::kConstant:
      return lr;
    case ScheduleConfig::Kind::kStep: {
      const auto passed = std::count_if(schedule.boundaries.begin(), schedule.boundaries.end(),
                                        [x](double boundary) { return x >= boundary; });
      return lr * std::pow(schedule.decay_rate, static_cast<double>(passed));
    }
    case ScheduleConfig::Kind::kExponential: {
      double periods = since / schedule.decay_every;
      if (schedule.staircase) periods = std::floor(periods);
      return lr * std::pow(schedule.decay_rate, periods);
    }
    case ScheduleConfig::Kind::kCosine:
      return schedule.end_learning_rate +
             (lr - schedule.end_learning_rate) * 0.5 * (1 + std::cos(std::numbers::pi * done));
    case ScheduleConfig::Kind::kPolynomial:
      return (lr - schedule.end_learning_rate) * std::pow(1 - done, schedule.power) + schedule.end_learning_rate;
  }
  return lr;
}

}  // namespace evenkeel
