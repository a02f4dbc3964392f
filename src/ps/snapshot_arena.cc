#include "ps/snapshot_arena.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel::ps {

absl::StatusOr<std::unique_ptr<SnapshotArena>> SnapshotArena::Create(const std::vector<std::int64_t>& arrays,
                                                                     std::vector<Part> stripes) {
  const std::int64_t floats = std::accumulate(arrays.begin(), arrays.end(), std::int64_t{0});
  std::unique_ptr<SnapshotArena> snapshot(new SnapshotArena);
  EK_ASSIGN_OR_RETURN(snapshot->arena_, Arena::Allocate(static_cast<std::size_t>(floats) * sizeof(float)));
  std::span<float> rest = snapshot->arena_.floats();
  for (std::int64_t length : arrays) {
    snapshot->arrays_.push_back(rest.first(static_cast<std::size_t>(length)));
    rest = rest.subspan(static_cast<std::size_t>(length));
  }
  snapshot->states_ = std::vector<std::atomic<int>>(stripes.size());
  snapshot->stripes_ = std::move(stripes);
  return snapshot;
}

void SnapshotArena::Open(std::vector<std::span<const float>> sources) {
  EK_CHECK(!open() && sources.size() == arrays_.size());
  sources_ = std::move(sources);
  for (auto& state : states_) state.store(kPending, std::memory_order_relaxed);
  open_.store(true, std::memory_order_release);
}

void SnapshotArena::CopyStripe(std::size_t bucket) {
  std::atomic<int>& state = states_[bucket];
  int expected = kPending;
  if (state.compare_exchange_strong(expected, kCopying, std::memory_order_acquire)) {
    const Part& part = stripes_[bucket];
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      // Slots are shorter than the parameters: statistics have none.
      const auto end = std::min<std::int64_t>(part.end, static_cast<std::int64_t>(arrays_[i].size()));
      if (part.begin >= end) continue;
      std::copy(sources_[i].begin() + part.begin, sources_[i].begin() + end, arrays_[i].begin() + part.begin);
    }
    state.store(kCopied, std::memory_order_release);
    return;
  }
  // Another thread copies it: as long as one stripe takes.
  while (state.load(std::memory_order_acquire) != kCopied) std::this_thread::yield();
}

}  // namespace evenkeel::ps
