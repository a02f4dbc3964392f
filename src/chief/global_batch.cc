#include "chief/global_batch.h"

#include <algorithm>
#include <cmath>

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
  if (!noise_scale_ || noise.steps() - changed_at_ < window_) return "";
  const std::optional<double> scale = noise.NoiseScale();
  if (!scale) return "";
  const auto size = static_cast<double>(size_);
  double most = static_cast<double>(noise_scale_->max);
  const double least = std::clamp(static_cast<double>(floor), static_cast<double>(noise_scale_->min), most);
  if (ceiling > 0) most = std::clamp(static_cast<double>(ceiling), least, most);
  const double wanted = std::clamp(*scale, least, most);
  if (wanted < size * noise_scale_->least_factor && wanted > size / noise_scale_->least_factor) return "";
  const double next = std::clamp(wanted, size / noise_scale_->most_factor, size * noise_scale_->most_factor);
  const std::int64_t rounded = std::llround(next);
  if (rounded == size_) return "";
  const std::int64_t before = size_;
  size_ = rounded;
  changed_at_ = noise.steps();
  return absl::StrFormat(
      "the global batch is %d samples now, not %d: the gradient noise scale is %.4g; learning rate times %.4g", size_,
      before, *scale, LearningRateFactor());
}

void GlobalBatch::Restore(std::int64_t size, std::int64_t changed_at) {
  if (!noise_scale_) return;
  size_ = std::clamp(size, noise_scale_->min, noise_scale_->max);
  changed_at_ = changed_at;
}

}  // namespace evenkeel
