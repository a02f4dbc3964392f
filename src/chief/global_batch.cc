#include "chief/global_batch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace evenkeel {

GlobalBatch::GlobalBatch(std::int64_t first, const BatchingConfig& batching)
    : first_(first), window_(batching.gradnorm_window), noise_scale_(batching.noise_scale), size_(first) {}

double GlobalBatch::LearningRateFactor() const {
  const double ratio = static_cast<double>(size_) / static_cast<double>(first_);
  if (!noise_scale_) return 1;
  switch (noise_scale_->learning_rate) {
    case BatchingConfig::NoiseScale::LearningRate::kNone:
      return 1;
    case BatchingConfig::NoiseScale::LearningRate::kLinear:
      return ratio;
    case BatchingConfig::NoiseScale::LearningRate::kSquareRoot:
      return std::sqrt(ratio);
  }
  return 1;
}

std::string GlobalBatch::Follow(const GradientNoise& noise, std::int64_t floor, std::int64_t ceiling) {
  if (!noise_scale_) return "";
  std::int64_t most = noise_scale_->max;
  const std::int64_t least = std::clamp(floor, noise_scale_->min, most);
  if (ceiling > 0) most = std::clamp(ceiling, least, most);
  if (size_ < least || size_ > most) {
    return ChangeTo(std::clamp(size_, least, most), noise.steps(),
                    absl::StrFormat("the workers take %d to %d together", least, most));
  }
  const std::optional<double> scale = noise.NoiseScale();
  if (noise.steps() - changed_at_ < window_ || !scale) return "";
  const auto size = static_cast<double>(size_);
  const double wanted = std::clamp(*scale, static_cast<double>(least), static_cast<double>(most));
  if (wanted < size * noise_scale_->least_factor && wanted > size / noise_scale_->least_factor) return "";
  const double next = std::clamp(wanted, size / noise_scale_->most_factor, size * noise_scale_->most_factor);
  return ChangeTo(std::llround(next), noise.steps(), absl::StrFormat("the gradient noise scale is %.4g", *scale));
}

std::string GlobalBatch::ChangeTo(std::int64_t size, std::int64_t steps, const std::string& why) {
  const std::int64_t before = std::exchange(size_, size);
  if (before == size) return "";
  changed_at_ = steps;
  return absl::StrFormat("the global batch is %d samples now, not %d: %s; learning rate times %.4g", size_, before, why,
                         LearningRateFactor());
}

void GlobalBatch::BeginAnew() {
  size_ = first_;
  changed_at_ = 0;
}

void GlobalBatch::Restore(std::int64_t size, std::int64_t changed_at) {
  if (!noise_scale_) return;
  size_ = std::clamp(size, noise_scale_->min, noise_scale_->max);
  changed_at_ = changed_at;
}

}  // namespace evenkeel
