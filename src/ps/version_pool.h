// Three buffers that hold published versions: the newest, and older ones that readers still have pinned.
//
// A reader pins the newest only if another buffer stays free for the next version; otherwise it gets a copy. So the
// writer waits for nobody but, for as long as a copy in memory takes, a reader that copies.
//
// Threading: thread-safe; one writer at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel::ps {

class VersionPool : public std::enable_shared_from_this<VersionPool> {
 public:
  // Errors: kResourceExhausted.
  static absl::StatusOr<std::shared_ptr<VersionPool>> Create(std::int64_t floats,
                                                             MemoryKind memory = MemoryKind::kPrivate);

  // Before the first Publish it shows zeros as version g0.c0.
  PinnedVersion Newest() ABSL_LOCKS_EXCLUDED(mutex_);

  // Where the next version is to be written; `to` is `from` when no other buffer is free. Readers then wait for
  // Publish.
  struct Target {
    int index = 0;
    std::span<const float> from;
    std::span<float> to;
  };
  Target BeginWrite() ABSL_LOCKS_EXCLUDED(mutex_);
  void Publish(const Target& target, Version version) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is being written, for readers of parts that are. nullopt: it is written in place, or holding it would leave
  // the next write no buffer.
  std::optional<PinnedVersion> PinTarget(const Target& target, Version version) ABSL_LOCKS_EXCLUDED(mutex_);
  // The newest version's floats, for the writer.
  std::span<const float> current() const;

 private:
  struct Buffer {
    int pins = 0;
    int copies = 0;  // readers copying it right now
    Version version;
  };
  explicit VersionPool(std::array<Arena, 3> arenas) : arenas_(std::move(arenas)) {}
  int FreeBuffer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PinnedVersion Pin(int index, Version version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unpin(int index) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::array<Arena, 3> arenas_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::array<Buffer, 3> buffers_ ABSL_GUARDED_BY(mutex_);
  int current_ ABSL_GUARDED_BY(mutex_) = 0;
  bool in_place_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace evenkeel::ps
