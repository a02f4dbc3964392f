// The first step of a process makes memory and kernels. A worker has taken one before it is admitted, so that the
// others do not wait for it.
#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "worker/worker_impl.h"

namespace evenkeel::worker_internal {
namespace {

constexpr std::int64_t kFewSamples = 8;
constexpr Duration kLongest =
    std::chrono::seconds(2);  // as the few foretell; a slower machine learns it in its first step
constexpr std::size_t kMostSizes = 8;
constexpr Duration kShortStep = std::chrono::milliseconds(50);
constexpr Duration kSendsEnd = std::chrono::seconds(5);  // those of the life before

}  // namespace

// What it computes goes nowhere: on whatever the parameters' memory holds, into gradients that no update is.
absl::Status Worker::WarmUp(std::int64_t samples, const std::vector<std::int64_t>& later) {
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
  // Kernels for another size take a millisecond, which is much of a short step and nothing of a long one.
  if (took > kShortStep) return absl::OkStatus();
  for (std::size_t i = 0; i < std::min(later.size(), kMostSizes); ++i) {
    const std::int64_t size = later[i];
    if (size < 1 || size > MemorySamples() || size > data_.dataset->size()) continue;
    EK_RETURN_IF_ERROR(step(size).status());
    sizes_seen_.Add(size);
  }
  return absl::OkStatus();
}

}  // namespace evenkeel::worker_internal
