// A copy of parameters and optimizer slots as they were at one version, made bucket by bucket: by the thread that
// writes the checkpoint, and by the next step for what that thread has not reached yet.
//
// Threading: Open and Close by the owner, one at a time; CopyStripe thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/arena.h"

namespace evenkeel::ps {

class SnapshotArena {
 public:
  struct Part {
    std::int64_t begin = 0, end = 0;  // local floats
  };
  // `arrays`: lengths of what is copied: the parameters, then each slot. `stripes`: local, one a bucket.
  static absl::StatusOr<std::unique_ptr<SnapshotArena>> Create(const std::vector<std::int64_t>& arrays,
                                                               std::vector<Part> stripes);

  // Whether a snapshot waits to be copied or written.
  bool open() const { return open_.load(std::memory_order_acquire); }
  // `sources`: as `arrays`. Each stays unchanged until every stripe is copied.
  void Open(std::vector<std::span<const float>> sources);
  void Close() { open_.store(false, std::memory_order_release); }

  // On return the bucket's stripe of every array is in the arena, whoever copied it.
  void CopyStripe(std::size_t bucket);
  void CopyAll() {
    for (std::size_t bucket = 0; bucket < stripes_.size(); ++bucket) CopyStripe(bucket);
  }
  std::size_t stripes() const { return stripes_.size(); }
  std::span<const float> array(std::size_t index) const { return arrays_[index]; }

 private:
  enum State : int { kPending, kCopying, kCopied };
  SnapshotArena() = default;

  Arena arena_;
  std::vector<std::span<float>> arrays_;
  std::vector<Part> stripes_;
  std::vector<std::span<const float>> sources_;
  std::vector<std::atomic<int>> states_;
  std::atomic<bool> open_{false};
};

}  // namespace evenkeel::ps
