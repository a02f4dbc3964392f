// Accounts for every sample of every epoch: each position is free, leased to an update, or spent by a committed one.
//
// At most two epochs are open: the next one opens when nothing of the current one is free, so that nobody waits at the
// seam; the current one closes when all of it is spent.
//
// Threading: none; one caller at a time. Limits: memory is the number of intervals in the open epochs.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "chief/interval_set.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/ranges.h"

namespace evenkeel {

class SampleLedger {
 public:
  // Requires samples >= 1. epochs 0: without end.
  SampleLedger(std::int64_t samples, std::int64_t epochs);

  // The epoch from which the next Take comes; nullopt when nothing may be taken now (all is leased in the epochs that
  // may be open, or the last epoch is through).
  std::optional<Epoch> NextEpoch() const;
  // Free positions of an open (or just openable) epoch.
  std::int64_t FreeIn(Epoch epoch) const;
  // Free positions in all epochs that may be open now.
  std::int64_t FreeTotal() const;
  // Leases the `count` lowest free positions of the epoch, or fewer where fewer are free.
  RangeList Take(Epoch epoch, std::int64_t count);
  // Leased positions go back to the pool, or are spent for good. Requires that they are leased.
  void Return(Epoch epoch, const RangeList& positions);
  void Spend(Epoch epoch, const RangeList& positions);
  // Free positions are spent at once, as a log says. Errors: kDataLoss where they are not all free.
  absl::Status Adopt(Epoch epoch, const RangeList& positions);

  std::int64_t samples() const { return samples_; }
  // Epochs all spent.
  std::int64_t completed_epochs() const { return static_cast<std::int64_t>(first_open_); }
  // Every epoch is spent. Never true without a number of epochs.
  bool Finished() const { return epochs_ > 0 && completed_epochs() >= epochs_; }
  bool AnythingLeased() const;
  // Raised whenever positions go back: plans made before it may not be the lowest free ones any more.
  std::uint64_t returns() const { return returns_; }
  // Samples committed in each epoch, counted one by one as they commit (not derived from the intervals).
  const std::vector<std::int64_t>& spent_per_epoch() const { return spent_per_epoch_; }

  // What a checkpoint keeps: leased counts as free.
  struct Snapshot {
    std::uint64_t first_open = 0;
    std::vector<RangeList> spent;  // of the open epochs, from first_open
    std::vector<std::int64_t> spent_per_epoch;
  };
  Snapshot Save() const;
  // Errors: kDataLoss when the snapshot does not fit `samples`.
  static absl::StatusOr<SampleLedger> Load(std::int64_t samples, std::int64_t epochs, const Snapshot& snapshot);

 private:
  struct Open {
    IntervalSet free, leased, spent;
  };
  bool MayOpen(std::uint64_t epoch) const { return epochs_ == 0 || epoch < static_cast<std::uint64_t>(epochs_); }
  Open& At(Epoch epoch);
  void OpenNext();
  void CloseSpent();

  std::int64_t samples_;
  std::int64_t epochs_;
  std::uint64_t first_open_ = 0;
  std::deque<Open> open_;  // one or two, from first_open_
  std::vector<std::int64_t> spent_per_epoch_;
  std::uint64_t returns_ = 0;
};

}  // namespace evenkeel
