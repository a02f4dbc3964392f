// How long each worker's steps take, told to the batch controller, and how long it waits.
//
// A step counts from its binding until every server has all of its gradient, or, where servers take it only as they
// have room (a folded set), until its worker reports it: what the step takes of everybody's time where all wait for
// all, and the worker's own rhythm where nobody does. Waiting for others is no part of it.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "chief/chief_impl.h"

namespace evenkeel {
namespace {

constexpr std::size_t kEvictAmong = 3;  // fewer have no median that is worth the name
constexpr int kEvictAfterSteps = 10;    // of its own, so long a worker is too slow before it goes

}  // namespace

void Chief::Impl::JoinBatches(const WorkerState& worker) {
  if (!batches) return;
  const bool declared = !options.batch_sizes.empty() || !options.experiment.batching.speeds.empty();
  batches->AddWorker(worker.incarnation, worker.name, declared ? worker.weight : 0, worker.timed);
  batches->SetCeiling(worker.incarnation, worker.memory_samples);
}

// Of a share that is being bound.
UpdateTiming Chief::Impl::TimingOf(const WorkerState& worker, const Share& share) const {
  UpdateTiming timing;
  timing.bound_since = now;
  if (worker.idle_since) timing.idle_seconds = ToSeconds(now - *worker.idle_since);
  if (batches) timing.predicted_seconds = batches->PredictedSeconds(worker.incarnation, TotalSize(share.positions));
  return timing;
}

void Chief::Impl::TimeReported(const UpdateState& update, const StepReport& report) {
  UpdateTiming& timing = undecided.Timing(update.share.update);
  timing.compute_seconds = report.compute_seconds;
  timing.first_of_size = report.first_of_size;
  // In a folded set an update is staged when its turn comes, which tells nothing of its own worker.
  if (undecided.Set(update.set).folded && !timing.staged_since) timing.staged_since = now;
  if (timing.staged_since) Measure(update.share, timing);
}

// On every server. Its report is there or will be; at the latest when it is decided it is measured without.
void Chief::Impl::TimeStaged(const UpdateState& update) {
  UpdateTiming& timing = undecided.Timing(update.share.update);
  if (!timing.staged_since) timing.staged_since = now;
  Measure(update.share, timing);
}

// Once, as soon as the step is staged and reported.
void Chief::Impl::Measure(const Share& share, UpdateTiming& timing) {
  if (timing.measured || timing.compute_seconds <= 0) return;
  timing.measured = true;
  const WorkerState* worker = workers.Find(share.worker);
  if (worker == nullptr) return;
  const double busy = std::max(ToSeconds(*timing.staged_since - timing.bound_since), timing.compute_seconds);
  workers.Change(*worker, [&timing, busy](WorkerState& w) {
    w.step_seconds = timing.compute_seconds;
    w.busy_seconds = busy;
    w.predicted_seconds = timing.predicted_seconds;
  });
  if (batches && !ByStaleness()) {
    batches->Observe(share.worker, TotalSize(share.positions), busy, timing.first_of_size,
                     timing.compute_seconds / busy);
  }
}

bool Chief::Impl::ByStaleness() const {
  return options.experiment.train.sync.mode != SyncConfig::Mode::kBsp &&
         options.experiment.batching.asp_adjust_strategy == BatchingConfig::AspAdjustStrategy::kStaleness;
}

// Commits while others commit too are time: a worker twice as stale takes twice as long from its version to its commit.
void Chief::Impl::TimeByStaleness(const UpdateState& update, std::int64_t staleness) {
  if (!batches || !ByStaleness()) return;
  batches->Observe(update.share.worker, TotalSize(update.share.positions),
                   static_cast<double>(staleness + 1) * commit_seconds, update.timing.first_of_size);
}

void Chief::Impl::TimeDecided(UpdateState& update) {
  UpdateTiming& timing = update.timing;
  if (!timing.measured && timing.staged_since) {  // its report comes too late, or not at all
    timing.compute_seconds = std::max(ToSeconds(*timing.staged_since - timing.bound_since), 1e-9);
    Measure(update.share, timing);
  }
  const WorkerState* worker = workers.Find(update.share.worker);
  if (worker == nullptr) return;
  const double all = timing.idle_seconds + ToSeconds(now - timing.bound_since);
  const double waited = timing.idle_seconds + (timing.staged_since ? ToSeconds(now - *timing.staged_since) : 0);
  workers.Change(*worker, [this, all, waited](WorkerState& w) {
    w.idle_since = now;
    w.waiting_share = all > 0 ? std::clamp(waited / all, 0.0, 1.0) : 0;
  });
}

// It took at least so long.
void Chief::Impl::TimeDropped(const UpdateState& update) {
  const double seconds = ToSeconds(now - update.timing.bound_since);
  if (batches && seconds > update.timing.predicted_seconds) {
    batches->Observe(update.share.worker, TotalSize(update.share.positions), seconds);
  }
}

// A worker whose batch cannot be less and who is still too slow makes all others wait. One at a time: with it the
// others' batches grow, and the next may be fast enough.
void Chief::Impl::EvictSlowest() {
  const double factor = options.experiment.batching.evict_slower_than;
  if (factor <= 0 || !batches || workers.training() <= options.experiment.membership.workers_min) return;
  const std::vector<BatchWorkerView> members = batches->Workers();
  std::vector<double> seconds;
  for (const BatchWorkerView& member : members) {
    if (member.observations > 0) seconds.push_back(member.predicted_seconds);
  }
  if (seconds.size() < kEvictAmong) return;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  const BatchWorkerView* slowest = nullptr;
  for (const BatchWorkerView& member : members) {
    const WorkerState* worker = workers.Find(member.worker);
    if (worker == nullptr) continue;
    if (member.observations == worker->steps_seen) continue;  // others' commits say nothing of it
    const bool slow = member.settled && member.batch <= options.experiment.batching.min_batch_size &&
                      member.predicted_seconds > factor * *middle;
    const int steps = slow ? worker->slow_steps + 1 : 0;
    workers.Change(*worker, [&](WorkerState& w) {
      w.slow_steps = steps;
      w.steps_seen = member.observations;
    });
    if (steps < kEvictAfterSteps) continue;
    if (slowest == nullptr || member.predicted_seconds > slowest->predicted_seconds) slowest = &member;
  }
  if (slowest == nullptr) return;
  BeginToLeave(
      workers.At(slowest->worker),
      absl::StrFormat("batching.evict_slower_than: a step of %d samples, the least, takes it %.3g s, more than %g "
                      "times the median of %.3g s",
                      slowest->batch, slowest->predicted_seconds, factor, *middle));
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
  const auto planned = [this](Incarnation worker) -> std::int64_t {
    const WorkerState* found = workers.Find(worker);
    return found != nullptr && found->provisional ? TotalSize(found->provisional->positions) : 0;
  };
  std::int64_t total = 0;
  for (Incarnation worker : workers.with_provisional()) total += planned(worker);
  if (total != StepSamples()) return true;
  const auto plan = batches->PlanAgain(total);
  if (!plan.ok()) return true;
  return std::all_of(plan->begin(), plan->end(),
                     [&](const BatchShare& share) { return share.batch == planned(share.worker); });
}

}  // namespace evenkeel
