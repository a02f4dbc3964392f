#include "worker/self_timing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "worker/worker_impl.h"

namespace evenkeel {
namespace {

constexpr int kTurnsMax = 256;
constexpr std::size_t kSizesKept = 16;
constexpr std::int64_t kSmallBatch = 8, kLargeBatch = 32;
// Of a step's time, that grows with the batch at least: two sizes so close, on a machine that is disturbed, tell no
// more, and a line too flat would give its worker nearly all of the first step.
constexpr double kLeastGrowth = 0.25;
constexpr Duration kSendsEnd = std::chrono::seconds(5);  // those of the life before

// Where steps are alike so soon, no more are needed. Half the time is longer than the 100 ms after which a CPU quota
// begins anew: before, a machine that has one may look as fast as one that has none.
constexpr double kLeastTime = 0.5;
constexpr int kLeastTurns = 4;
constexpr double kClose = 0.03;  // standard error of a size's mean, relative

struct Turns {
  std::int64_t size = 0;
  double seconds = 0, squares = 0, first_seconds = 0;
  int count = 0;
  double Mean() const { return count > 0 ? seconds / count : first_seconds; }
  bool Close() const {
    if (count < kLeastTurns) return false;
    const double mean = Mean(), variance = std::max(0.0, squares / count - mean * mean) / (count - 1);
    return std::sqrt(variance) <= kClose * mean;
  }
};

}  // namespace

absl::StatusOr<SelfTiming> TimeSteps(const std::function<absl::Status(std::int64_t)>& step, std::int64_t small,
                                     std::int64_t large, Duration time, const Clock& clock,
                                     const std::function<bool()>& stop) {
  EK_CHECK(0 < small && small <= large);
  const TimePoint begin = clock.Now(), until = begin + time;
  Turns turns[2] = {{small}, {large}};
  const auto run = [&](Turns& turn) -> absl::Status {
    const TimePoint began = clock.Now();
    EK_RETURN_IF_ERROR(step(turn.size));
    const double seconds = ToSeconds(clock.Now() - began);
    if (turn.first_seconds == 0) {
      turn.first_seconds = seconds;
    } else {
      turn.seconds += seconds;
      turn.squares += seconds * seconds;
      ++turn.count;
    }
    return absl::OkStatus();
  };
  // The small one's second step is waited for however long it takes: without it nothing is known.
  for (Turns* turn : {&turns[0], &turns[0], &turns[1], &turns[1]}) {
    if (stop()) return SelfTiming{};
    if (turn == &turns[1] && clock.Now() >= until) break;
    EK_RETURN_IF_ERROR(run(*turn));
  }
  const TimePoint enough = begin + FromSeconds(kLeastTime * ToSeconds(time));
  for (int i = 2; i < kTurnsMax && clock.Now() < until; ++i) {
    if (clock.Now() >= enough && turns[0].Close() && turns[1].Close()) break;
    for (Turns& turn : turns) {
      if (stop()) return SelfTiming{};
      EK_RETURN_IF_ERROR(run(turn));
    }
  }
  const double least = turns[0].Mean();
  if (!(least > 0)) return SelfTiming{};  // faster than the clock
  SelfTiming timing{0, least / static_cast<double>(small)};
  if (turns[1].count == 0 || large == small) return timing;
  const double most = turns[1].Mean();
  const double slope = (most - least) / static_cast<double>(large - small);
  timing.seconds_per_sample =
      std::clamp(slope, kLeastGrowth * most / static_cast<double>(large), most / static_cast<double>(large));
  timing.fixed_seconds = std::max(0.0, most - timing.seconds_per_sample * static_cast<double>(large));
  return timing;
}

bool BatchSizesSeen::Add(std::int64_t size) {
  const auto found = std::find(sizes_.begin(), sizes_.end(), size);
  if (found != sizes_.end()) {
    std::rotate(sizes_.begin(), found, found + 1);
    return false;
  }
  if (sizes_.size() >= kSizesKept) sizes_.pop_back();
  sizes_.insert(sizes_.begin(), size);
  return true;
}

namespace worker_internal {

// Before Ready, so that nobody waits for it. What it computes goes nowhere.
absl::Status Worker::TimeMyself() {
  const BatchingConfig& batching = options_.experiment.batching;
  timing_ = SelfTiming{};
  if (batching.mode != BatchingConfig::Mode::kModel || !batching.speeds.empty()) return absl::OkStatus();
  if (batching.probe <= Duration::zero() || !buffers_->BeginStep(clock_.Now() + kSendsEnd)) return absl::OkStatus();
  Doing("timing itself");
  const std::int64_t most = std::min({options_.experiment.train.global_batch_size, data_.dataset->size(), kLargeBatch});
  Batch batch;
  const auto step = [&](std::int64_t size) -> absl::Status {
    EK_RETURN_IF_ERROR(AssembleRange(*data_.dataset, 0, size, batch));
    model_->ParametersChanged();
    EK_RETURN_IF_ERROR(model_->TrainStep(InputOf(batch), [](int) {}).status());
    SeeMemory(batch);
    return absl::OkStatus();
  };
  const auto stop = [this] {
    MutexLock lock(mutex_);
    return stop_asked_ || end_.has_value();
  };
  EK_ASSIGN_OR_RETURN(timing_, TimeSteps(step, std::min(kSmallBatch, most), most, batching.probe, clock_, stop));
  LogInfo(absl::StrFormat("timed itself: a step takes %.3g ms and %.3g ms a sample", timing_.fixed_seconds * 1e3,
                          timing_.seconds_per_sample * 1e3));
  return absl::OkStatus();
}

}  // namespace worker_internal
}  // namespace evenkeel
