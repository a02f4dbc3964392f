// Commits in a row that one experiment made, recomputed one after the other.
//
// Threading: none; computes on threads of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/core/thread_pool.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/ps/shard.h"
#include "evenkeel/replay/replay.h"
#include "replay/history.h"
#include "replay/sources.h"
#include "replay/update_pipeline.h"

namespace evenkeel::replay {

// What all stretches share.
struct Context {
  const ReplayOptions& options;
  const Storage& storage;
  const Sources& sources;
  // Each finding as it is made, in the order of commits.
  std::function<void(Finding)> find;
  // After each commit.
  std::function<void(const LineCommit&)> done;
  ReplayReport& report;
  bool exact = true;  // so far every update was computed by a backend that this machine has alike
};

class Stretch {
 public:
  // Opens the experiment's data and makes room for the parameters.
  // Errors: kInvalidArgument for data or a model other than the job's; kNotFound, kDataLoss for data.
  static absl::StatusOr<std::unique_ptr<Stretch>> Open(Context& context, const Experiment& experiment);

  // One of these first: from the seed, to be compared with checkpoints too; from a checkpoint on disk; from where
  // another stretch ended.
  void Initialise(Version version);
  absl::Status Restore(Version version);
  absl::Status GoOnFrom(Stretch& other);

  std::int64_t samples() const { return data_.dataset->size(); }
  // Errors: kInvalidArgument for an update that was computed on a version before this stretch; kDataLoss, kNotFound.
  absl::Status Run(std::span<const LineCommit> commits);

 private:
  Stretch(Context& context, const Experiment& experiment) : context_(context), experiment_(experiment) {}
  absl::Status MakeShard();
  Version version() const { return shard_->Newest().version; }
  absl::StatusOr<VersionWindow> OpenWindow(std::span<const LineCommit> commits);
  absl::Status CompareFingerprints(std::span<const LineCommit> commits);
  absl::StatusOr<std::unique_ptr<UpdatePipeline>> OpenPipeline(std::span<const LineCommit> commits,
                                                               VersionWindow& window);
  bool Reproducible(const LineCommit& commit) const;
  // Compares the present state with its checkpoints. Where bits cannot be had, the recorded state is gone on from,
  // whether it agrees or not: each stretch between checkpoints is judged by itself.
  absl::Status Compare();
  void CheckComputed(const LineCommit& commit, const UpdatePipeline::Computed& computed);
  // What the wire made of an update's gradient, in its slot.
  void PassWire(const CommittedUpdate& update, std::int64_t samples, ps::StageSlot slot);
  void ForgetRests(std::span<const LineCommit> commits, std::size_t done);
  void CheckClipping(const Decision& decision, std::span<const ps::StageSlot> slots);

  Context& context_;
  const Experiment& experiment_;
  OpenedData data_;
  std::map<std::size_t, ParameterLayout> layouts_;  // by number of servers
  std::unique_ptr<ThreadPool> pool_;                // applies
  std::unique_ptr<ps::Shard> shard_;
  bool from_seed_ = false;
  // On a 16-bit wire, what rounding took from each worker's newest update: by bucket, one after the other.
  struct Rest {
    std::uint64_t sequence = 0;
    std::vector<float> floats;
  };
  std::map<Incarnation, Rest> rests_;
  std::map<Incarnation, std::size_t> last_update_;  // commit of the stretch, by index
  std::vector<std::uint16_t> means_;
  bool said_rest_ = false;
};

}  // namespace evenkeel::replay
