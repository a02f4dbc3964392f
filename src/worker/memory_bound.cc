#include "worker/memory_bound.h"

#include <algorithm>

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr double kPart = 0.8;        // of what is available
constexpr std::int64_t kGrowth = 8;  // the model grows what it holds by this part of it at least

}  // namespace

void MemoryBound::Observe(std::int64_t samples, std::int64_t bytes) {
  EK_CHECK(samples >= 1);
  now_ = {samples, bytes};
  if (least_.samples == 0 || samples < least_.samples) least_ = now_;
}

std::int64_t MemoryBound::Samples(std::int64_t available) const {
  if (now_.samples == 0) return 0;
  const bool line = now_.samples > least_.samples && now_.bytes > least_.bytes;
  const Held from = line ? least_ : Held{};
  const double bytes_per_sample =
      std::max(static_cast<double>(now_.bytes - from.bytes) / static_cast<double>(now_.samples - from.samples), 1.0);
  const auto more =
      static_cast<std::int64_t>(kPart * static_cast<double>(std::max<std::int64_t>(available, 0)) / bytes_per_sample);
  return now_.samples + (more < now_.samples / kGrowth ? 0 : more);
}

}  // namespace evenkeel
