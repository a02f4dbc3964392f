#include "replay/update_pipeline.h"

#include <algorithm>
#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel::replay {

UpdatePipeline::UpdatePipeline(std::span<const LineCommit> commits, ps::Shard& shard, VersionWindow& window,
                               MakeComputer make_computer, LayoutOf layout_of)
    : commits_(commits),
      shard_(shard),
      window_(window),
      make_computer_(std::move(make_computer)),
      layout_of_(std::move(layout_of)) {}

absl::StatusOr<std::unique_ptr<UpdatePipeline>> UpdatePipeline::Create(std::span<const LineCommit> commits,
                                                                       ps::Shard& shard, VersionWindow& window,
                                                                       MakeComputer make_computer, LayoutOf layout_of,
                                                                       int jobs, std::uint32_t slots) {
  std::unique_ptr<UpdatePipeline> pipeline(
      new UpdatePipeline(commits, shard, window, std::move(make_computer), std::move(layout_of)));
  for (std::uint32_t i = 0; i < slots; ++i) {
    EK_RETURN_IF_ERROR(shard.AllocateSlot(ps::StageSlot(i)));
    pipeline->free_slots_.push_back(ps::StageSlot(i));
  }
  for (int i = 1; i < jobs; ++i) pipeline->threads_.emplace_back([&p = *pipeline] { p.Run(); });
  return pipeline;
}

UpdatePipeline::~UpdatePipeline() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

// In order, up to the first update that needs a version or a slot that is not there.
void UpdatePipeline::Begin(CommitNumber newest) {
  while (begin_commit_ < commits_.size() && !free_slots_.empty()) {
    const LineCommit& commit = commits_[begin_commit_];
    const CommittedUpdate& update = commit.decision.updates[begin_update_];
    auto task = std::make_shared<Task>();
    for (const Version& version : update.computed_on) {
      if (version.commit > newest) return;
      task->versions.push_back(window_.Get(version.commit));
    }
    task->update = &update;
    task->fingerprint = commit.fingerprints[begin_update_];
    task->slot = free_slots_.back();
    free_slots_.pop_back();
    begun_.push_back(task);
    if (++begin_update_ == commit.decision.updates.size()) {
      ++begin_commit_;
      begin_update_ = 0;
    }
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(task));
    changed_.NotifyAll();
  }
}

absl::StatusOr<UpdatePipeline::Computed> UpdatePipeline::Next(CommitNumber newest) {
  Begin(newest);
  const std::size_t updates = commits_[next_commit_++].decision.updates.size();
  EK_CHECK(begun_.size() >= updates);
  Computed computed;
  for (std::size_t i = 0; i < updates; ++i) {
    const std::shared_ptr<Task> task = std::move(begun_.front());
    begun_.pop_front();
    while (std::shared_ptr<Task> other = TaskOrDone(*task)) Perform(*other, computers_);
    if (!task->result.ok()) return task->result.status();
    computed.slots.push_back(task->slot);
    computed.results.push_back(*std::move(task->result));
  }
  return computed;
}

void UpdatePipeline::Release(const Computed& computed) {
  free_slots_.insert(free_slots_.end(), computed.slots.begin(), computed.slots.end());
}

absl::StatusOr<StepResult> UpdatePipeline::Compute(const Task& task, Computers& computers) {
  std::unique_ptr<GradientComputer>& computer = computers[task.fingerprint];
  if (!computer) {
    EK_ASSIGN_OR_RETURN(computer, make_computer_(task.fingerprint));
  }
  EK_ASSIGN_OR_RETURN(StepResult result,
                      computer->Compute(*task.update, layout_of_(task.versions.size()), task.versions));
  const ParameterLayout& layout = *shard_.place().layout;
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const Bucket& bucket = layout.buckets()[b];
    const std::span<float> target = shard_.StageInto(task.slot, static_cast<int>(b));
    std::copy_n(computer->gradients().begin() + bucket.begin, bucket.size(), target.begin());
  }
  return result;
}

void UpdatePipeline::Perform(Task& task, Computers& computers) {
  absl::StatusOr<StepResult> result = Compute(task, computers);
  task.versions.clear();
  MutexLock lock(mutex_);
  task.result = std::move(result);
  task.done = true;
  changed_.NotifyAll();
}

// One that nobody computes yet; null once `task` is done.
std::shared_ptr<UpdatePipeline::Task> UpdatePipeline::TaskOrDone(const Task& task) {
  MutexLock lock(mutex_);
  while (waiting_.empty() && !task.done) changed_.Wait(mutex_);
  if (task.done) return nullptr;
  std::shared_ptr<Task> other = std::move(waiting_.front());
  waiting_.pop_front();
  return other;
}

void UpdatePipeline::Run() {
  Computers computers;
  for (;;) {
    std::shared_ptr<Task> task;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
      if (stopping_) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Perform(*task, computers);
  }
}

}  // namespace evenkeel::replay
