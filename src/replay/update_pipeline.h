// Computes the updates of a stretch of commits on several threads, ahead of the commit in hand as far as the versions
// they need are there; each result lies in a staging slot of the shard. What is computed when changes no bits.
//
// Threading: one owner calls, and computes while it waits; the others of `jobs` threads are the pipeline's.
// Limits: as many slots as given; updates are begun in the order of commits, so that the next commit never waits for a
// slot.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/ps/shard.h"
#include "replay/gradient_computer.h"
#include "replay/history.h"
#include "replay/version_window.h"

namespace evenkeel::replay {

class UpdatePipeline {
 public:
  // Makes a computer for a fingerprint (its index); called on the computing threads.
  using MakeComputer = std::function<absl::StatusOr<std::unique_ptr<GradientComputer>>(std::size_t fingerprint)>;
  // The layout of so many servers; stays valid.
  using LayoutOf = std::function<const ParameterLayout&(std::size_t servers)>;

  // All given outlive the pipeline. Allocates `slots` staging slots; requires at least as many as a commit has updates.
  static absl::StatusOr<std::unique_ptr<UpdatePipeline>> Create(std::span<const LineCommit> commits, ps::Shard& shard,
                                                                VersionWindow& window, MakeComputer make_computer,
                                                                LayoutOf layout_of, int jobs, std::uint32_t slots);
  ~UpdatePipeline();

  struct Computed {
    std::vector<ps::StageSlot> slots;  // in the order of the commit's updates
    std::vector<StepResult> results;
  };
  // Waits for all updates of the next commit; `newest` is the last one published to the window.
  absl::StatusOr<Computed> Next(CommitNumber newest);
  // The commit has been applied: its slots are free again.
  void Release(const Computed& computed);

 private:
  struct Task {
    const CommittedUpdate* update = nullptr;
    std::size_t fingerprint = 0;
    std::vector<std::shared_ptr<const FlatVector>> versions;
    ps::StageSlot slot;
    bool done = false;
    absl::StatusOr<StepResult> result;
  };

  using Computers = std::map<std::size_t, std::unique_ptr<GradientComputer>>;  // by fingerprint

  UpdatePipeline(std::span<const LineCommit> commits, ps::Shard& shard, VersionWindow& window,
                 MakeComputer make_computer, LayoutOf layout_of);
  void Begin(CommitNumber newest);
  void Run();
  absl::StatusOr<StepResult> Compute(const Task& task, Computers& computers);
  void Perform(Task& task, Computers& computers);
  std::shared_ptr<Task> TaskOrDone(const Task& task);

  const std::span<const LineCommit> commits_;
  ps::Shard& shard_;
  VersionWindow& window_;
  const MakeComputer make_computer_;
  const LayoutOf layout_of_;
  // The owner's: the next update to begin, the next commit to hand out.
  std::size_t begin_commit_ = 0, begin_update_ = 0, next_commit_ = 0;
  std::vector<ps::StageSlot> free_slots_;
  Computers computers_;
  std::deque<std::shared_ptr<Task>> begun_;  // not handed out yet, in order

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Task>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace evenkeel::replay
