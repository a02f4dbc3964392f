// The samples of a whole step: what the experiment says, or as many as the gradient noise scale is worth.
//
// A batch far below the noise scale wastes steps, one far above it wastes samples (McCandlish et al. 2018,
// section 2.2). The estimate belongs to the model and the data, not to the batch, so a change needs no new one; still
// the next change waits until the window has been renewed.
//
// Threading: none; one caller at a time. Deterministic: from what it is told alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "chief/gradient_noise.h"
#include "evenkeel/config/experiment.h"

namespace evenkeel {

class GlobalBatch {
 public:
  // `first`: train.global_batch_size. Requires what the experiment's rules require of `batching`.
  GlobalBatch(std::int64_t first, const BatchingConfig& batching);

  std::int64_t size() const { return size_; }
  bool fixed() const { return !noise_scale_; }
  // Of the schedule's learning rate, for a step planned with this size.
  double LearningRateFactor() const;

  // Between two commits. `floor` and `ceiling`: what the workers must and can take together; 0: no bound. A size that
  // they cannot take changes at once. Returns why the size changed, or "".
  std::string Follow(const GradientNoise& noise, std::int64_t floor, std::int64_t ceiling);
  // Steps of the estimate when it changed last.
  std::int64_t changed_at() const { return changed_at_; }
  // As at the start of the job.
  void BeginAnew();
  // As a checkpoint or the log says; within the bounds. Where it is fixed: no effect.
  void Restore(std::int64_t size, std::int64_t changed_at);

 private:
  std::string ChangeTo(std::int64_t size, std::int64_t steps, const std::string& why);

  const std::int64_t first_;
  const std::int64_t window_;
  const std::optional<BatchingConfig::NoiseScale> noise_scale_;
  std::int64_t size_;
  std::int64_t changed_at_ = 0;  // steps of the estimate
};

}  // namespace evenkeel
