#include "runtime/rounded_versions.h"

#include <cstdint>
#include <span>

#include "evenkeel/core/bfloat16.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

absl::StatusOr<PayloadOut> RoundedVersions::Get(const std::shared_ptr<ps::Shard>& shard,
                                                const ps::PinnedVersion& version, int bucket) {
  const ps::Place& place = shard->place();
  const Stripe& stripe = place.layout->StripeOf(bucket, place.server);
  const auto begin = static_cast<std::size_t>(stripe.local_offset), count = static_cast<std::size_t>(stripe.size());
  MutexLock lock(mutex_);
  EK_ASSIGN_OR_RETURN(std::shared_ptr<Copy> copy, CopyOf(shard, version.version));
  const std::span<std::uint16_t> wire(reinterpret_cast<std::uint16_t*>(copy->arena.data()) + begin, count);
  if (!copy->rounded[static_cast<std::size_t>(bucket)]) {
    Round(shard->StripeOf(version, bucket), wire);
    copy->rounded[static_cast<std::size_t>(bucket)] = true;
  }
  return PayloadOut{std::as_bytes(wire), std::move(copy)};
}

absl::StatusOr<std::shared_ptr<RoundedVersions::Copy>> RoundedVersions::CopyOf(const std::shared_ptr<ps::Shard>& shard,
                                                                               Version version) {
  std::shared_ptr<Copy> free;
  const std::size_t bytes = static_cast<std::size_t>(shard->floats()) * sizeof(std::uint16_t);
  for (const std::shared_ptr<Copy>& copy : copies_) {
    if (copy->version == version && copy->shard.lock() == shard) return copy;
    if (copy.use_count() == 1) free = copy;  // nobody sends it any more
  }
  if (!free) {
    free = std::make_shared<Copy>();
    if (copies_.size() < kKept) copies_.push_back(free);
  }
  if (free->arena.size() < bytes) {
    EK_ASSIGN_OR_RETURN(free->arena, Arena::Allocate(bytes, MemoryKind::kShared));
  }
  free->shard = shard;
  free->version = version;
  free->rounded.assign(shard->place().layout->buckets().size(), false);
  return free;
}

}  // namespace evenkeel
