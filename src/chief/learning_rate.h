// The learning rate as a function of progress.
#pragma once

#include <cstdint>

#include "evenkeel/config/experiment.h"

namespace evenkeel {

// How far training is, before the commit whose rate is asked.
struct Progress {
  std::int64_t commits = 0;
  std::int64_t samples = 0;
};

// Over the whole training, for schedules whose `total` is 0; 0 where unknown.
struct TrainingLength {
  std::int64_t commits = 0;
  std::int64_t samples = 0;
  std::int64_t samples_per_epoch = 1;
};

// x counts `unit`s since the start. Warm-up: linear from warmup_start * lr to lr over `warmup` units; decay then runs
// on x - warmup, over total - warmup. cosine: Loshchilov & Hutter 2017, eq. 5, one period; polynomial: (lr - end) (1 -
// x/total)^power + end; exponential: lr decay_rate^(x/decay_every); step: lr decay_rate^(boundaries passed).
double LearningRate(const ScheduleConfig& schedule, const TrainingLength& length, Progress progress);

}  // namespace evenkeel
