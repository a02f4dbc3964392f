// How long each worker's steps take, told to the batch controller, and how long it waits.
//
// A step counts from its binding until every server has all of its gradient: what the step takes of everybody's time
// where all wait for all, and the worker's own rhythm where nobody does. Waiting for others is no part of it.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "chief/chief_impl.h"

namespace evenkeel {

void Chief::Impl::JoinBatches(const WorkerState& worker) {
  if (!batches) return;
  const bool declared = !options.batch_sizes.empty() || !options.experiment.batching.speeds.empty();
  batches->AddWorker(worker.incarnation, worker.name, declared ? worker.weight : 0, worker.timed);
}

void Chief::Impl::TimeBound(WorkerState& worker, UpdateState& update) {
  update.bound_since = now;
  update.idle_seconds = worker.idle_since ? ToSeconds(now - *worker.idle_since) : 0;
  if (batches) {
    update.predicted_seconds = batches->PredictedSeconds(worker.incarnation, TotalSize(update.share.positions));
  }
}

// Once it is staged and its report is there; at the latest when it is decided.
void Chief::Impl::TimeStaged(UpdateState& update) {
  if (!update.staged_since) {
    if (!update.staged_everywhere()) return;
    update.staged_since = now;
  }
  if (update.measured || update.compute_seconds <= 0) return;
  update.measured = true;
  auto worker = workers.find(update.share.worker);
  if (worker == workers.end()) return;
  worker->second.busy_seconds = std::max(ToSeconds(*update.staged_since - update.bound_since), update.compute_seconds);
  worker->second.predicted_seconds = update.predicted_seconds;
  if (!batches) return;
  batches->Observe(worker->first, TotalSize(update.share.positions), worker->second.busy_seconds, update.first_of_size);
}

void Chief::Impl::TimeDecided(UpdateState& update) {
  auto worker = workers.find(update.share.worker);
  if (!update.measured && update.staged_since) {  // its report comes too late, or not at all
    update.compute_seconds = std::max(ToSeconds(*update.staged_since - update.bound_since), 1e-9);
    TimeStaged(update);
  }
  if (worker == workers.end()) return;
  worker->second.idle_since = now;
  const double all = update.idle_seconds + ToSeconds(now - update.bound_since);
  const double waited = update.idle_seconds + (update.staged_since ? ToSeconds(now - *update.staged_since) : 0);
  worker->second.waiting_share = all > 0 ? std::clamp(waited / all, 0.0, 1.0) : 0;
}

// It took at least so long.
void Chief::Impl::TimeDropped(const UpdateState& update) {
  const double seconds = ToSeconds(now - update.bound_since);
  if (batches && seconds > update.predicted_seconds) {
    batches->Observe(update.share.worker, TotalSize(update.share.positions), seconds);
  }
}

// The plan's reason and its batches, of the first few workers.
std::string Chief::Impl::BatchesLine() const {
  constexpr std::size_t kNamed = 16;
  std::string line = absl::StrCat("batches: ", batches->Explain(), ":");
  const std::vector<BatchWorkerView> members = batches->Workers();
  for (std::size_t i = 0; i < std::min(members.size(), kNamed); ++i) {
    absl::StrAppend(&line, i == 0 ? " " : ", ", members[i].name, " ", members[i].batch);
  }
  if (members.size() > kNamed) absl::StrAppend(&line, " and ", members.size() - kNamed, " more");
  return line;
}

// The provisional plan is still what the controller wants.
bool Chief::Impl::PlanStands() {
  if (!batches || !batches->asks_again()) return true;
  std::int64_t total = 0;
  for (const auto& [incarnation, worker] : workers) {
    if (worker.provisional) total += TotalSize(worker.provisional->positions);
  }
  if (total != options.experiment.train.global_batch_size) return true;
  const auto plan = batches->PlanAgain(total);
  if (!plan.ok()) return true;
  return std::all_of(plan->begin(), plan->end(), [&](const BatchShare& share) {
    const auto worker = workers.find(share.worker);
    const bool has = worker != workers.end() && worker->second.provisional;
    return share.batch == (has ? TotalSize(worker->second.provisional->positions) : 0);
  });
}

}  // namespace evenkeel
