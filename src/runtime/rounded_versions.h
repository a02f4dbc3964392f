// Published versions as bfloat16, for pulls that want them so: a bucket is rounded once a version, by whoever asks
// first, and all get the same memory.
//
// Threading: thread-safe. Memory: a copy for each version that is still being sent, half a shard's parameters each; up
// to kKept of them are kept for the versions to come.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/stream.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel {

class RoundedVersions {
 public:
  // The version's stripe of a bucket, as far as the version is made. Errors: kResourceExhausted.
  absl::StatusOr<PayloadOut> Get(const std::shared_ptr<ps::Shard>& shard, const ps::PinnedVersion& version, int bucket)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr std::size_t kKept = 3;  // as many as a shard publishes at once
  struct Copy {
    std::weak_ptr<const ps::Shard> shard;
    Version version;
    Arena arena;
    std::vector<bool> rounded;  // by bucket
  };
  absl::StatusOr<std::shared_ptr<Copy>> CopyOf(const std::shared_ptr<ps::Shard>& shard, Version version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<std::shared_ptr<Copy>> copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace evenkeel
