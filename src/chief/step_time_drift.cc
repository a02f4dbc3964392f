#include "chief/step_time_drift.h"

#include <algorithm>
#include <cmath>

namespace evenkeel {
namespace {

constexpr double kMemory = 0.98;      // per step
constexpr double kBetter = 0.01;      // of the line's squared errors, by which a level's must be less
constexpr double kImmaterial = 0.01;  // smaller errors, in logarithms, are all alike: no batch follows them
constexpr double kSurely = 4;         // deviations
constexpr double kNoLonger = 1;       // deviations, below which it is followed no more

}  // namespace

void StepTimeDrift::Levels::Shift(double by) {
  for (double& level : now_) level += by;
}

void StepTimeDrift::Levels::Learn(double log_ratio) {
  for (std::size_t rate = 0; rate < kRates.size(); ++rate) now_[rate] += kRates[rate] * (log_ratio - now_[rate]);
}

void StepTimeDrift::Score(const Levels& levels, double log_ratio, double outlier) {
  const auto squared = [outlier](double error) {
    return std::clamp(error * error, kImmaterial * kImmaterial, outlier * outlier);
  };
  const double line = squared(log_ratio);
  line_squares_ += line;
  for (std::size_t rate = 0; rate < kRates.size(); ++rate) {
    const double more = squared(log_ratio - levels.at(rate)) - line;
    more_[rate] += more;
    more_squares_[rate] += more * more;
  }
}

bool StepTimeDrift::Step() {
  std::size_t best = kRates.size();
  for (std::size_t rate = 0; rate < kRates.size(); ++rate) {
    const double surely = rate == follows_ ? kNoLonger : kSurely;
    const double better = rate == follows_ ? 0 : kBetter;
    if (more_[rate] >= -better * line_squares_ || more_[rate] >= -surely * std::sqrt(more_squares_[rate])) continue;
    if (best == kRates.size() || more_[rate] < more_[best]) best = rate;
  }
  line_squares_ *= kMemory;
  for (double& more : more_) more *= kMemory;
  for (double& squares : more_squares_) squares *= kMemory;
  if (best == follows_) return false;
  follows_ = best;
  return true;
}

double StepTimeDrift::Factor(const Levels& levels) const {
  if (!follows()) return 1;
  double most = levels.at(0);
  for (std::size_t rate = 1; rate < kRates.size(); ++rate) most = std::max(most, levels.at(rate));
  return std::exp(most);
}

double StepTimeDrift::Doubt() const { return follows() ? std::sqrt(kRates[follows_] / (2 - kRates[follows_])) : 0; }

}  // namespace evenkeel
