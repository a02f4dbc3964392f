// The largest batch at which one worker keeps its throughput: beyond it caches or memory run out.
//
// With fixed costs a sample never costs more in a larger batch. Where it costs `collapse_factor` times more for a few
// steps right after the batch grew past what was tried before, either the batch is too large or the worker has just
// become slower. The way back to the last good batch tells: time as before, the ceiling stays; still slow, it goes.
// A ceiling is tried again a quarter higher after `retry_steps`, then after twice as many, and so on.
//
// Threading: none. Deterministic.
#pragma once

#include <cstdint>

#include "chief/step_time_model.h"

namespace evenkeel {

class ThroughputCeiling {
 public:
  enum class Verdict {
    kLearn,      // nothing special: the step belongs to the model
    kHoldBack,   // not to be learnt: it may be a collapse
    kSuspected,  // likewise; the ceiling is new, and the batch should go back at once
    kRefuted,    // to be learnt: it was no collapse, the worker is slower
  };

  ThroughputCeiling(double collapse_factor, std::int64_t retry_steps)
      : collapse_factor_(collapse_factor), first_retry_steps_(retry_steps), retry_steps_(retry_steps) {}

  // A step's time before `model` has learnt it.
  Verdict Observe(std::int64_t batch, double seconds, const StepTimeModel& model);

  std::int64_t ceiling() const { return ceiling_; }  // samples; 0: none known
  void Restore(std::int64_t ceiling) { ceiling_ = ceiling; }

 private:
  enum class Phase { kFree, kTrial, kHeld };

  Verdict ObserveBeyond(std::int64_t batch, double seconds, const StepTimeModel& model);
  Verdict ObserveTrial(std::int64_t batch, double seconds);

  double collapse_factor_;
  std::int64_t first_retry_steps_;
  std::int64_t retry_steps_;

  std::int64_t good_ = 0;  // largest batch that kept its throughput
  std::int64_t ceiling_ = 0;
  Phase phase_ = Phase::kFree;
  int fine_ = 0, dear_ = 0;   // steps beyond good_ in a row
  double dear_log_ = 0;       // their excess, summed; from the suspicion on, its mean
  int trial_ = 0, late_ = 0;  // steps since the suspicion at the good batch, beyond it
  double trial_log_ = 0;
  StepTimeLine line_;            // at the suspicion
  std::int64_t held_steps_ = 0;  // since the ceiling was set or tried
};

}  // namespace evenkeel
