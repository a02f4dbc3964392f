// How much longer a worker's steps take on average than its line says.
//
// The line is robust: it leaves out what is far off, so that no single pause throws it. Where workers do not wait for
// each other (asp, ssp) a worker's rate is the reciprocal of the mean, pauses included: a machine that is stopped half
// of the time has half the rate, though most of its steps are as long as ever.
//
// Threading: none; one caller at a time. Deterministic.
#pragma once

#include <algorithm>
#include <cmath>

namespace evenkeel {

class MeanPace {
 public:
  // `ratio`: of a step's time over the line's.
  void Learn(double ratio) {
    weight_ = kMemory * weight_ + 1;
    sum_ = kMemory * sum_ + ratio;
    squares_ = kMemory * squares_ + ratio * ratio;
  }
  // By which the line is to be multiplied: 1 unless the mean is surely another. Of pauses it takes some: one is chance.
  double factor() const {
    if (weight_ < kLeastSteps) return 1;
    const double mean = sum_ / weight_, variance = std::max(0.0, squares_ / weight_ - mean * mean);
    return std::abs(mean - 1) > kSurely * std::sqrt(variance / weight_) + kImmaterial ? mean : 1;
  }

 private:
  static constexpr double kMemory = 1 - 1.0 / 500;  // a step
  static constexpr double kLeastSteps = 20;
  static constexpr double kSurely = 2;  // deviations of the mean
  static constexpr double kImmaterial = 0.02;

  double weight_ = 0, sum_ = 0, squares_ = 0;
};

}  // namespace evenkeel
