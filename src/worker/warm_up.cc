// The first step of a process makes memory and kernels. A worker has taken one before it is admitted, so that the
// others do not wait for it.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "worker/worker_impl.h"

namespace evenkeel::worker_internal {
namespace {

constexpr std::int64_t kFewSamples = 8;
constexpr Duration kLongest =
    std::chrono::seconds(2);  // as the few foretell; a slower machine learns it in its first step
constexpr Duration kSendsEnd = std::chrono::seconds(5);  // those of the life before

}  // namespace

// What it computes goes nowhere: on whatever the parameters' memory holds, into gradients that no update is.
absl::Status Worker::WarmUp(std::int64_t samples) {
  samples = std::min(samples, data_.dataset->size());
  if (samples < 1 || samples == warm_samples_) return absl::OkStatus();
  if (!buffers_->BeginStep(clock_.Now() + kSendsEnd)) return absl::OkStatus();
  Doing("warming up");
  Batch batch;
  const auto step = [&](std::int64_t size) -> absl::StatusOr<Duration> {
    const TimePoint began = clock_.Now();
    EK_RETURN_IF_ERROR(AssembleRange(*data_.dataset, 0, size, batch));
    model_->ParametersChanged();
    EK_RETURN_IF_ERROR(model_->TrainStep(InputOf(batch), [](int) {}).status());
    SeeMemory(batch);
    return clock_.Now() - began;
  };
  const std::int64_t few = std::min(kFewSamples, samples);
  EK_ASSIGN_OR_RETURN(Duration took, step(few));
  samples = std::min(samples, MemorySamples());
  const double foretold = ToSeconds(took) * static_cast<double>(samples) / static_cast<double>(few);
  bool stop = false;
  {
    MutexLock lock(mutex_);
    stop = stop_asked_ || end_.has_value();
  }
  if (stop || samples == few || foretold > ToSeconds(kLongest)) return absl::OkStatus();
  EK_ASSIGN_OR_RETURN(took, step(samples));
  warm_samples_ = samples;
  sizes_seen_.Add(samples);
  LogDebug(absl::StrFormat("warm: a batch of %d takes %.3g ms the first time", samples, ToSeconds(took) * 1e3));
  return absl::OkStatus();
}

}  // namespace evenkeel::worker_internal
