// Whether the workers' step times wander by themselves, and how fast it pays to follow.
//
// A line learnt from a hundred steps is the best forecast where the noise of one step tells nothing about the next. On
// shared machines it often does: a neighbour comes and goes, a clock sinks. So each worker also has levels, moving
// means of the logarithm of measured over predicted, with several weights of the newest step; and all workers together
// say which of them forecasts best, two steps ahead, since the next step is planned while this one runs. A level is
// followed only where it is surely better than the line alone: errors less by 3%, and by four deviations of their
// difference. Where speeds are constant that does not happen, and a few steps of one worker do not make it happen.
//
// Threading: none. Deterministic.
#pragma once

#include <array>
#include <cstddef>

namespace evenkeel {

class StepTimeDrift {
 public:
  static constexpr std::array<double, 3> kRates = {0.1, 0.25, 0.5};  // weight of the newest step

  // Of one worker: logarithms, to be added to that of the line's prediction.
  class Levels {
   public:
    double at(std::size_t rate) const { return now_[rate]; }
    double newest() const { return now_.back(); }  // that moves fastest
    // The line itself has moved by this much, in logarithms.
    void Shift(double by);
    void Learn(double log_ratio);

   private:
    std::array<double, kRates.size()> now_{};
  };

  // One step of one worker, before its levels learn it; log_ratio of measured over the line's prediction. Errors beyond
  // `outlier` count as that.
  void Score(const Levels& levels, double log_ratio, double outlier);
  // A step of all workers is over. True: it follows another rate now.
  bool Step();

  bool follows() const { return follows_ < kRates.size(); }
  // By which steps take longer than the line says; 1 where no level is followed. The largest of the levels: a step
  // waits for the slowest, so that a worker is slow as soon as the newest steps say so, and fast again once the older
  // do too.
  double Factor(const Levels& levels) const;
  // Of the level's own error, relative to the noise of a step.
  double Doubt() const;

 private:
  double line_squares_ = 0;                           // of the line's errors
  std::array<double, kRates.size()> more_{};          // by which a level's squared errors are more than the line's
  std::array<double, kRates.size()> more_squares_{};  // of these differences
  std::size_t follows_ = kRates.size();
};

}  // namespace evenkeel
