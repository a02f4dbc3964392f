#include "evenkeel/ps/fold.h"

#include <algorithm>
#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel::ps {

void Fold::Reset(std::uint32_t slots, std::vector<bool> held) {
  slots_ = slots;
  held_ = std::move(held);
  busy_.assign(slots_ * held_.size(), false);
  Begin(0);
}

void Fold::Begin(std::int32_t positions) {
  EK_CHECK(positions == 0 || slots_ >= 2);
  ++round_;
  positions_ = positions;
  received_.assign(held_.size() * static_cast<std::size_t>(positions), false);
  folded_.assign(held_.size(), 0);
  adding_.assign(held_.size(), false);
  unfolded_ = positions > 0 ? static_cast<std::size_t>(std::count(held_.begin(), held_.end(), true)) : 0;
}

StageSlot Fold::SlotOf(std::int32_t position) const {
  const auto p = static_cast<std::uint32_t>(position);
  return StageSlot(p < slots_ ? p : 1 + (p - 1) % (slots_ - 1));
}

bool Fold::Free(StageSlot slot, std::int32_t bucket, std::int32_t position) const {
  if (busy_[At(slot, bucket)]) return false;
  return !folding() || position < static_cast<std::int32_t>(slots_) || position <= LastWithRoom(bucket);
}

void Fold::Received(std::int32_t bucket, std::int32_t position) {
  ReceivedAt(bucket, position) = true;
  if (position == 0) Advance(bucket, 1);
}

std::optional<FoldStep> Fold::Next(std::int32_t bucket) {
  const std::int32_t first = folded_[static_cast<std::size_t>(bucket)];
  if (first == 0 || adding_[static_cast<std::size_t>(bucket)]) return std::nullopt;
  std::int32_t last = first;
  while (last < positions_ && ReceivedAt(bucket, last)) ++last;
  if (last == first) return std::nullopt;
  const FoldStep step{round_, bucket, first, last - first};
  adding_[static_cast<std::size_t>(bucket)] = true;
  busy_[At(StageSlot(0), bucket)] = true;
  for (const StageSlot slot : SlotsOf(step)) busy_[At(slot, bucket)] = true;
  return step;
}

absl::InlinedVector<StageSlot, 8> Fold::SlotsOf(const FoldStep& step) const {
  absl::InlinedVector<StageSlot, 8> slots;
  for (std::int32_t position = step.first; position < step.first + step.count; ++position) {
    slots.push_back(SlotOf(position));
  }
  return slots;
}

bool Fold::Ended(const FoldStep& step) {
  busy_[At(StageSlot(0), step.bucket)] = false;
  for (const StageSlot slot : SlotsOf(step)) busy_[At(slot, step.bucket)] = false;
  if (step.round != round_) return false;
  adding_[static_cast<std::size_t>(step.bucket)] = false;
  Advance(step.bucket, step.count);
  return true;
}

void Fold::Advance(std::int32_t bucket, std::int32_t by) {
  std::int32_t& folded = folded_[static_cast<std::size_t>(bucket)];
  folded += by;
  if (folded == positions_) --unfolded_;
}

}  // namespace evenkeel::ps
