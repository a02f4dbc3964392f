// Reads a set from its first sample to its last in batches, one ahead on a thread of its own.
//
// Threading: Rewind and Next from one thread.
#pragma once

#include <array>
#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel {

class BatchAhead {
 public:
  // `dataset` outlives this.
  BatchAhead(const Dataset& dataset, std::int64_t batch_size);
  ~BatchAhead();

  // Starts again at the first sample.
  void Rewind();
  // Null after the last batch. What it gives stays valid until the next call.
  absl::StatusOr<const Batch*> Next();

 private:
  void Run();

  // Constant after construction.
  const Dataset& dataset_;
  const std::int64_t batch_size_;
  // One is in the caller's hands, the other is being filled.
  std::array<Batch, 2> batches_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool filling_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t next_sample_ ABSL_GUARDED_BY(mutex_);  // to read; at the end there is nothing to do
  std::uint64_t filled_ ABSL_GUARDED_BY(mutex_) = 0;  // batches since Rewind
  std::uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace evenkeel
