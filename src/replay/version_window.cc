#include "replay/version_window.h"

#include <algorithm>
#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel::replay {
namespace {

void Unstripe(const ps::Shard& shard, std::span<const float> local, bool statistics, std::span<float> out) {
  const ParameterLayout& layout = *shard.place().layout;
  EK_CHECK(layout.servers() == 1);
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    if (layout.buckets()[b].statistic && !statistics) continue;
    const Stripe& stripe = layout.StripeOf(static_cast<int>(b), ServerIndex(0));
    std::copy_n(local.begin() + stripe.local_offset, stripe.size(), out.begin() + stripe.begin);
  }
}

}  // namespace

void CopyFlat(const ps::Shard& shard, std::span<float> out) { Unstripe(shard, shard.Newest().floats, true, out); }

void CopyFlatSlot(const ps::Shard& shard, int slot, std::span<float> out) {
  Unstripe(shard, shard.OptimizerSlot(slot), false, out);
}

void VersionWindow::Publish(CommitNumber commit, const ps::Shard& shard) {
  if (!last_use_.contains(commit)) return;
  std::shared_ptr<FlatVector> floats;
  if (spare_.empty()) {
    floats = std::make_shared<FlatVector>(static_cast<std::size_t>(shard.place().layout->total_floats()));
  } else {
    floats = std::move(spare_.back());
    spare_.pop_back();
  }
  CopyFlat(shard, *floats);
  if (wire_ == WireDtype::kBfloat16) {
    const std::span<float> parameters =
        std::span(*floats).first(static_cast<std::size_t>(shard.place().layout->parameter_floats()));
    rounded_.resize(parameters.size());
    Round(parameters, rounded_);
    DecodeSums(rounded_, 1, parameters);
  }
  versions_[commit] = std::move(floats);
}

void VersionWindow::Applied(CommitNumber commit) {
  for (auto it = versions_.begin(); it != versions_.end();) {
    if (last_use_.at(it->first) > commit) {
      ++it;
      continue;
    }
    // Whoever computed on it has been waited for before the commit was applied.
    spare_.push_back(std::move(it->second));
    it = versions_.erase(it);
  }
}

}  // namespace evenkeel::replay
