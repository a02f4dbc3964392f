// Assembles batches on a thread of its own, one ahead of the step in progress.
//
// Threading: Request and Take from the step loop only.
#pragma once

#include <array>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel {

class BatchLoader {
 public:
  // `dataset` outlives the loader.
  BatchLoader(const Dataset& dataset, AugmentOptions augment);
  ~BatchLoader();

  // Starts reading the update's samples, in place of what was requested before and not taken.
  void Request(UpdateId update, Epoch epoch, RangeList positions);
  // Waits for the update's batch; it stays valid until the next Take. Requires that it was the last one requested.
  absl::StatusOr<const Batch*> Take(UpdateId update);

 private:
  struct Wanted {
    UpdateId update;
    Epoch epoch;
    RangeList positions;
  };
  void Run();

  const Dataset& dataset_;
  const AugmentOptions augment_;
  // One batch is in the step's hands, the other is being filled.
  std::array<Batch, 2> batches_;

  Mutex mutex_;
  CondVar changed_;
  std::optional<Wanted> wanted_ ABSL_GUARDED_BY(mutex_);
  std::optional<UpdateId> filled_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int filling_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace evenkeel
