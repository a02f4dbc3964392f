// How a server that has room for a few staged updates sums a set of more of them while they come: bucket by bucket, in
// the set's order, so that the bits do not depend on who comes first.
//
//   position p of the set lies in slot p where p < slots, else in slot 1 + (p - 1) mod (slots - 1)
//   slot 0 is where position 0 lies, and what is summed onto it
//   p >= slots may be written once position p - (slots - 1), which had its slot before, is in the sum
//
// A set that began with no more updates than there are slots is not folded: each lies in a slot of its own.
// Threading: none; one caller at a time.
// Memory:    a byte for each slot and bucket, and for each position and bucket.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "evenkeel/core/ids.h"

namespace evenkeel::ps {

// A place for one staged update. Numbered from 0 within a configuration; reused.
using StageSlot = StrongId<struct StageSlotTag, std::uint32_t>;

// Of one bucket, positions [first, first + count) are to be added to slot 0.
struct FoldStep {
  std::uint64_t round = 0;  // of Begin
  std::int32_t bucket = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

class Fold {
 public:
  // A new place. `held`: by bucket, whether anything of it lies here.
  void Reset(std::uint32_t slots, std::vector<bool> held);
  // A set, or a further attempt at one: nothing of it is here. What is being written or summed keeps its room until it
  // ends. 0: a set that is not folded.
  void Begin(std::int32_t positions);

  bool folding() const { return positions_ > 0; }
  StageSlot SlotOf(std::int32_t position) const;
  // Whether the position's bucket may be written now, in `slot`.
  bool Free(StageSlot slot, std::int32_t bucket, std::int32_t position) const;
  void BeginWrite(StageSlot slot, std::int32_t bucket) { busy_[At(slot, bucket)] = true; }
  void EndWrite(StageSlot slot, std::int32_t bucket) { busy_[At(slot, bucket)] = false; }
  void Received(std::int32_t bucket, std::int32_t position);

  // What can be added to the bucket's sum now, if anything, and nothing is being added to it; Ended must follow.
  std::optional<FoldStep> Next(std::int32_t bucket);
  absl::InlinedVector<StageSlot, 8> SlotsOf(const FoldStep& step) const;
  // False: of a former round. Else further positions may have room: up to LastWithRoom.
  bool Ended(const FoldStep& step);
  std::int32_t LastWithRoom(std::int32_t bucket) const {
    return folded_[static_cast<std::size_t>(bucket)] + static_cast<std::int32_t>(slots_) - 2;
  }
  // All positions of all buckets are in slot 0.
  bool Whole() const { return unfolded_ == 0; }

 private:
  std::size_t At(StageSlot slot, std::int32_t bucket) const {
    return slot.value() * held_.size() + static_cast<std::size_t>(bucket);
  }
  char& ReceivedAt(std::int32_t bucket, std::int32_t position) {
    return received_[static_cast<std::size_t>(bucket) * static_cast<std::size_t>(positions_) +
                     static_cast<std::size_t>(position)];
  }
  void Advance(std::int32_t bucket, std::int32_t by);

  std::uint32_t slots_ = 0;
  std::vector<bool> held_;  // by bucket
  std::vector<char> busy_;  // by slot and bucket: being written, or summed
  std::uint64_t round_ = 0;
  std::int32_t positions_ = 0;
  std::vector<char> received_;        // by bucket and position
  std::vector<std::int32_t> folded_;  // by bucket: so many are in slot 0
  std::vector<char> adding_;          // by bucket
  std::size_t unfolded_ = 0;          // buckets that are not whole
};

}  // namespace evenkeel::ps
