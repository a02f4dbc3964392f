// A server's memory: published parameters, optimizer slots, staged updates, snapshots. Arenas are allocated once and
// kept.
//
//   local index = a float's place in this server's arenas: the stripes of ParameterLayout, in bucket order; parameters
//                 first, statistics after them
//
// Threading: Newest is thread-safe. StageInto is thread-safe for stripes that the caller alone may write (Server's
//            StageWrite says which). WriteSnapshot runs beside everything else. All others: one caller at a time, and
//            no two of them at once.
// Ownership: a PinnedVersion keeps the memory it shows alive, also beyond the shard.
// Determinism: the bits of parameters and slots depend on neither the number of threads, nor the number of servers, nor
//            the instruction set.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/core/thread_pool.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/protocol/messages.h"
#include "evenkeel/ps/server.h"

namespace evenkeel::ps {

// Floats of a block whose squared sum is reported for clipping by global norm.
constexpr std::int64_t kNormBlockFloats = 4096;

class VersionPool;
class SnapshotArena;

// A published version, unchanged while `owner` is held.
struct PinnedVersion {
  Version version;
  std::span<const float> floats;  // local
  std::shared_ptr<const void> owner;
};

class Shard {
 public:
  // Allocates all but the staging slots. `pool` outlives the shard. Published versions lie in `versions`: those that
  // workers on this machine read where they are need memory that can be shared.
  // Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(Place place, ThreadPool& pool,
                                                       MemoryKind versions = MemoryKind::kPrivate);
  ~Shard();

  // Initial values of every owned float, and of the slots; publishes `version`.
  void Initialise(std::uint64_t seed, Version version);
  // Values and slots from a checkpoint of the same model and optimizer; publishes `version`.
  // Errors: kFailedPrecondition names what differs; kDataLoss.
  absl::Status Restore(const CheckpointReader& reader, Version version);

  // Makes memory for slots up to `slot`; again: nothing. Errors: kResourceExhausted.
  absl::Status AllocateSlot(StageSlot slot);
  // Where the stripe of `bucket` goes. Requires an allocated slot.
  std::span<float> StageInto(StageSlot slot, int bucket) const;

  // Squared sums, in double, of the sum in rank order of the slots' parameters: one a block, each within a stripe.
  std::vector<BlockNorm> Norms(std::span<const StageSlot> slots) const;

  // Adds a bucket of `from`, in this order, to that of slot 0. Where place().measure_gradients, notes their squared
  // sums as those of positions from `first` on, of `positions` in all, and where first is 1 also that of slot 0,
  // position 0.
  void FoldBucket(int bucket, std::int32_t first, std::int32_t positions, std::span<const StageSlot> from);

  // Makes `decision.version` out of the newest one and publishes it. Slots in rank order; where `folded`, the one that
  // holds the sum of all updates. Never waits for readers. Returns, where place().measure_gradients, the squared sums
  // of the slots' parameters in double, and last that of their sum: the same bits whatever the number of threads.
  // `ready`, where given, is called for each bucket as soon as it is made, in the order in which a forward pass needs
  // them, the last one's first; never if the version cannot be held while it is written.
  using BucketReady = std::function<void(int bucket, const PinnedVersion& version)>;
  std::vector<double> Apply(const Decision& decision, std::span<const StageSlot> slots,
                            const BucketReady& ready = nullptr, bool folded = false);

  // The newest version, pinned, or copied when pinning it would leave Apply no buffer.
  PinnedVersion Newest() const;
  // A stripe's part of a version's floats.
  std::span<const float> StripeOf(const PinnedVersion& version, int bucket) const;

  // --- moving to another layout
  // What the place needs of each server of `from`, an array after the other.
  struct MovePiece {
    std::uint32_t array = 0;          // 0: parameters and statistics; n: optimizer slot n
    std::int64_t begin = 0, end = 0;  // floats, in the flat vector; within one stripe of either layout
  };
  static std::vector<std::vector<MovePiece>> PlanMove(const ParameterLayout& from, const Place& to);
  // Newest version's or slot's floats of a range that lies within one stripe. Errors: kInvalidArgument.
  absl::StatusOr<std::span<const float>> Range(std::uint32_t array, std::int64_t begin, std::int64_t end) const;
  // Of a fresh shard: where a range goes, for any thread that alone writes it; then the version is published.
  void BeginMove();
  absl::StatusOr<std::span<float>> MoveInto(std::uint32_t array, std::int64_t begin, std::int64_t end);
  void FinishMove(Version version);

  // Keeps the newest version and its slots as they are now. Requires that no snapshot is open.
  void BeginSnapshot();
  // Copies what Apply has not copied yet, writes the part and closes the snapshot, also after an error.
  absl::StatusOr<PartInfo> WriteSnapshot(Storage& storage, const std::string& folder, const std::string& file);

  const Place& place() const { return place_; }
  std::int64_t floats() const { return floats_; }
  // An optimizer slot's local floats (parameters only), in the order of SlotNames.
  std::span<const float> OptimizerSlot(int index) const { return optimizer_slots_[static_cast<size_t>(index)]; }

 private:
  // At most kPieceFloats floats of one tensor within one stripe: the unit of work.
  struct Piece {
    std::int64_t begin = 0, end = 0;  // local
    int bucket = 0;
    bool statistic = false;
    bool decay = false;
    float momentum = 0;  // statistics
  };
  struct OwnedTensorPart {
    int tensor = 0;
    std::int64_t tensor_begin = 0;  // element of the tensor
    std::int64_t local_begin = 0;
    std::int64_t count = 0;
  };

  struct ApplyStep;

  Shard(Place place, ThreadPool& pool);
  void CutPieces();
  // `squares`: one a source, then that of the sum; empty: not wanted.
  void ApplyPiece(const Piece& piece, const ApplyStep& apply, std::span<double> squares);
  std::span<float> Staging(StageSlot slot) const ABSL_LOCKS_EXCLUDED(staging_mutex_);
  std::vector<const float*> Sources(std::span<const StageSlot> slots) const;
  absl::StatusOr<std::pair<std::int64_t, std::int64_t>> Locate(std::uint32_t array, std::int64_t begin,
                                                               std::int64_t end) const;  // local place and count
  absl::Status CheckManifest(const Manifest& manifest) const;

  const Place place_;
  ThreadPool& pool_;
  std::int64_t floats_ = 0;
  std::int64_t parameter_floats_ = 0;
  std::vector<OwnedTensorPart> parts_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> first_piece_;  // by bucket, and one past the last
  std::vector<double> squares_;           // by piece, as ApplyPiece gives them; what FoldBucket notes stays for Apply

  std::shared_ptr<VersionPool> versions_;  // shared with the pins, which may outlive the shard
  Arena optimizer_arena_;
  std::vector<std::span<float>> optimizer_slots_;
  mutable Mutex staging_mutex_;                                 // a slot may be added while others are written
  std::vector<Arena> staging_ ABSL_GUARDED_BY(staging_mutex_);  // by slot
  std::unique_ptr<SnapshotArena> snapshot_;
  int move_target_ = 0;         // of the version pool
  std::span<float> move_into_;  // its floats, while a move fills them
};

}  // namespace evenkeel::ps
