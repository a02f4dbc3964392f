// An update's life: shares are cut, tickets bind, servers stage and seal, sets commit.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr double kRateWindow = 10;  // seconds, of examples/s

constexpr double kSmoothing = 0.2;

// Staged updates that each server has room for, however large they are: the sum so far, the next one in the order, and
// one that comes before its turn.
constexpr std::int64_t kLeastStageSlots = 3;

double Smooth(double old, double fresh) { return old > 0 ? old + kSmoothing * (fresh - old) : fresh; }

}  // namespace

// --- reports --------------------------------------------------------------------------------------------------------

void Chief::Impl::OnStaged(ServerState& server, Staged& staged) {
  const UpdateState* found = undecided.Find(staged.update);
  if (found == nullptr) return;
  const UpdateState& update = *found;
  if (staged.non_finite > 0) {
    const WorkerState* holder = workers.Find(update.share.worker);
    const std::string name =
        holder == nullptr ? absl::StrCat("incarnation ", update.share.worker.value()) : holder->name;
    return Fail(absl::InternalError(absl::StrCat(
        "step ", commit.value() + 1, ": ", name, " found ", staged.non_finite, " NaN or infinite values in layer '",
        staged.non_finite_layer,
        "'; the update is not committed. A lower train.schedule.learning_rate, clipping, or cleaner data may help")));
  }
  if (staged.samples != TotalSize(update.share.positions)) {
    return Fence(
        update.share.worker,
        absl::StrCat("it staged ", staged.samples, " samples for a ticket of ", TotalSize(update.share.positions)),
        false);
  }
  const SetState& set = undecided.Set(update.set);
  if (set.folded && staged.set_attempt != set.attempt) return;  // what it was part of is void
  const UpdateId id = staged.update;
  undecided.Stage(id, PlaceOf(server).value(), std::move(staged));
  if (!update.staged_everywhere()) return;
  TimeStaged(update);
  PaceFolded(update.set);
}

void Chief::Impl::OnSealed(ServerState& server, Sealed& sealed) {
  const auto set = undecided.sets().find(sealed.set);
  if (set == undecided.sets().end() || set->second.attempt != sealed.attempt || !set->second.seal_sent) return;
  undecided.Seal(sealed.set, PlaceOf(server).value(), std::move(sealed.norms));
}

void Chief::Impl::OnApplied(ServerState& server, const Applied& applied) {
  if (applied.version.generation != generation) return;
  OnNorms(server, applied);
  server.applied = std::max(server.applied, applied.version.commit);
  CommitNumber slowest = server.applied;
  for (const ServerState& s : servers) slowest = std::min(slowest, s.applied);
  while (!unapplied.empty() && unapplied.front().version.commit <= slowest) {
    if (unapplied.front().version == applied.version && applied.hash != unapplied.front().hash) {
      return Fail(absl::InternalError(absl::StrCat(server.name, " applied another decision at ",
                                                   ToString(applied.version), " than this chief made")));
    }
    unapplied.pop_front();
  }
}

void Chief::Impl::OnStepReport(SessionId session, const StepReport& report) {
  const WorkerState* worker = workers.BySession(session);
  if (report.samples <= 0 || !(report.compute_seconds >= 0)) return;
  const UpdateState* update = undecided.Find(report.update);
  const bool decided = update == nullptr || update->share.worker != worker->incarnation;
  workers.Change(*worker, [&report, decided](WorkerState& w) {
    w.seconds_per_sample = Smooth(w.seconds_per_sample, report.compute_seconds / static_cast<double>(report.samples));
    if (!decided) return;
    w.step_seconds = report.compute_seconds;
    w.busy_seconds = 0;  // of another step
  });
  if (!decided) TimeReported(*update, report);
  WorkerTotals& total = totals[worker->name];
  ++total.steps;
  total.step_seconds += report.compute_seconds;
}

// --- lost workers' updates ------------------------------------------------------------------------------------------

void Chief::Impl::ResolveFenced() {
  for (;;) {
    // All that a set loses at a time is known together: each new order of a folded set costs all of it once more.
    std::map<SetNumber, MembershipEpoch> newest;
    for (const UpdateId& id : undecided.fenced()) {
      const UpdateState& update = undecided.At(id);
      newest[update.set] = std::max(newest[update.set], *update.fenced_in);
    }
    std::vector<UpdateId> lost;
    for (const UpdateId& id : undecided.fenced()) {
      const UpdateState& update = undecided.At(id);
      if (update.staged_everywhere()) continue;
      const bool known = std::all_of(servers.begin(), servers.end(),
                                     [&](const ServerState& s) { return s.acked >= newest.at(update.set); });
      if (known) lost.push_back(id);
    }
    if (lost.empty()) return;
    // Where their set was being summed, another dead worker's update in it is lost with them.
    DropUpdates(lost, "its worker was lost before every server had it");
  }
}

// Requires that they are undecided. What is left of each set is ordered once, however many it has lost.
void Chief::Impl::DropUpdates(const std::vector<UpdateId>& ids, const std::string& reason) {
  if (ids.empty()) return;
  std::set<SetNumber> sets;
  SendToServers(Drop{ids});
  for (const UpdateId& id : ids) {
    const UpdateState update = undecided.Drop(id);
    ++dropped_updates;
    ledger->Return(update.share.epoch, update.share.positions);
    if (const WorkerState* worker = workers.Find(update.share.worker)) {
      workers.Change(*worker, [](WorkerState& w) { w.bound.reset(); });
      Send(worker->session, Outcome{id, false, {}});
    }
    Say(absl::StrCat("dropped ", ToString(id), " with ", TotalSize(update.share.positions), " samples: ", reason));
    sets.insert(update.set);
    dropped.push_back(id);
    if (dropped.size() > kDroppedKept) dropped.pop_front();
  }
  for (const SetNumber number : sets) {
    const auto set = undecided.sets().find(number);
    if (set != undecided.sets().end() && set->second.seal_sent) SendSeal(number);
  }
}

// --- sealing --------------------------------------------------------------------------------------------------------

void Chief::Impl::SendSeal(SetNumber number) {
  undecided.BeginSeal(number, servers.size());
  const SetState& set = undecided.Set(number);
  SendToServers(Seal{number, set.attempt, set.updates, set.folded});
  PaceFolded(number);
}

// In a folded set each update waits for those before it, so that only the first that is missing can be late.
void Chief::Impl::PaceFolded(SetNumber number) {
  const UpdateState* next = undecided.NextToCome(number);
  if (next == nullptr) return;
  const TimePoint floor = now + options.experiment.membership.ticket_deadline_floor;
  undecided.SetDeadline(next->share.update, std::max(next->deadline, floor));
}

// Of `count` servers each. 0: each worker's update has a place of its own.
std::uint32_t Chief::Impl::StageSlots(std::size_t count) const {
  const SyncConfig& sync = options.experiment.train.sync;
  if (sync.mode != SyncConfig::Mode::kBsp || sync.backup_workers > 0) return 0;
  std::int64_t floats = 0;
  for (const TensorSpec& tensor : tensors) floats += tensor.shape.elements();
  const std::int64_t bytes = floats * WireBytes(WireDtype::kFloat32) / static_cast<std::int64_t>(count);
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(options.stage_bytes / std::max<std::int64_t>(bytes, 1), kLeastStageSlots, 1 << 14));
}

// BSP with backup workers: once all but `backup_workers` of the step's updates are complete everywhere, the others are
// let go and their samples return.
void Chief::Impl::ChooseWithBackups() {
  const SyncConfig& sync = options.experiment.train.sync;
  if (sync.mode != SyncConfig::Mode::kBsp || sync.backup_workers == 0 || undecided.sets().empty()) return;
  const auto& [number, set] = *undecided.sets().begin();
  if (set.seal_sent) return;
  const auto holders = static_cast<std::int64_t>(set.updates.size());
  const std::int64_t spare = set.whole_epoch_end ? 0 : std::min(sync.backup_workers, holders - 1);
  if (static_cast<std::int64_t>(set.incomplete) > spare) return;
  std::vector<UpdateId> late;
  for (UpdateId id : set.updates) {
    if (!undecided.At(id).staged_everywhere()) late.push_back(id);
  }
  for (UpdateId id : late) TimeDropped(undecided.At(id));
  DropUpdates(late, "the step went on without it (backup workers)");
  SendSeal(number);
}

// --- committing -----------------------------------------------------------------------------------------------------

bool Chief::Impl::CommitNext() {
  if (training_complete()) return false;
  const std::optional<SetNumber> complete = undecided.FirstComplete();
  if (complete) Commit(*complete);
  return complete.has_value();
}

double Chief::Impl::ClipScale(const SetState& set, std::int64_t samples_in_set) const {
  const double limit = options.experiment.train.optimizer.clip_norm;
  if (!(limit > 0)) return 1;
  std::vector<BlockNorm> blocks;
  for (const auto& list : set.norms) blocks.insert(blocks.end(), list.begin(), list.end());
  std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  double squared = 0;
  for (const BlockNorm& block : blocks) squared += block.squared_sum;
  const double norm = std::sqrt(squared) / static_cast<double>(samples_in_set);
  return norm > limit ? limit / norm : 1;
}

// All but the workers, once the commit is counted.
// Commits of ASP may come in pairs: a rate of each alone would mean nothing.
void Chief::Impl::MeasureRate(std::int64_t committed) {
  if (!last_commit_at) return;  // it says nothing of how long that took
  const double seconds = ToSeconds(now - *last_commit_at), keep = std::exp(-seconds / kRateWindow);
  rate_samples = rate_samples * keep + static_cast<double>(committed);
  rate_seconds = rate_seconds * keep + seconds;
  if (rate_seconds > 0) rate = rate_samples / rate_seconds;
}

void Chief::Impl::FillRow(CommitRow& row, const Decision& decision) const {
  row.version = decision.version;
  row.at = now;
  row.samples = decision.samples;
  row.samples_trained = samples_trained;
  row.epoch = static_cast<double>(samples_trained) / static_cast<double>(samples);
  row.loss = last_loss;
  row.learning_rate = decision.learning_rate;
  row.examples_per_second = rate;
  row.dropped_updates = dropped_updates;
  row.global_batch_size = global_batch.size();
  row.gradient_norm = gradient_norm;
  if (noise) {
    row.noise_scale = noise->NoiseScale();
    row.statistical_efficiency = noise->Efficiency();
  }
}

void Chief::Impl::Commit(SetNumber number) {
  auto [set, updates] = undecided.Take(number);
  const TrainConfig& train = options.experiment.train;
  const GlobalBatch planned = global_batch;
  LearnNorms();
  CommitRecord record;
  Decision& decision = record.decision;
  decision.version = Version{generation, commit.Next()};
  decision.set = number;
  decision.attempt = set.attempt;
  CommitRow row;
  for (UpdateState& update : updates) {
    TimeDecided(update);
    decision.samples += update.staged[0]->samples;
    decision.loss_sum += update.staged[0]->loss_sum;
    CommittedUpdate committed;
    committed.update = update.share.update;
    committed.rank = update.rank;
    committed.epoch = update.share.epoch;
    committed.positions = update.share.positions;
    committed.bound_at = update.bound_at;
    committed.feedback = update.staged[0]->feedback;
    CommitNumber oldest = commit;
    for (const auto& staged : update.staged) {
      committed.computed_on.push_back(staged->computed_on);
      oldest = std::min(oldest, staged->computed_on.commit);
    }
    CommitRow::Worker in_row;
    in_row.rank = update.rank;
    in_row.batch = TotalSize(update.share.positions);
    in_row.staleness = static_cast<std::int64_t>(commit.value() - oldest.value());
    in_row.bound_at = update.timing.bound_since;
    in_row.staged_at = update.timing.staged_since.value_or(now);
    CountCommitted(update.share.worker, in_row.batch);
    TimeByStaleness(update, in_row.staleness);
    if (const WorkerState* worker = workers.Find(update.share.worker)) {
      workers.Change(*worker, [](WorkerState& w) {
        ++w.clock;
        w.bound.reset();
      });
      committed.clock = worker->clock;
      in_row.name = worker->name;
      in_row.step_seconds = worker->step_seconds;
      in_row.busy_seconds = worker->busy_seconds;
      in_row.predicted_seconds = worker->predicted_seconds;
      in_row.waiting_share = worker->waiting_share;
      in_row.gradient_norm = worker->gradient_norm;
    }
    row.workers.push_back(std::move(in_row));
    decision.updates.push_back(std::move(committed));
  }
  const TrainingLength length{train.max_commits, train.epochs * samples, samples};
  decision.learning_rate =
      LearningRate(train.schedule, length, Progress{static_cast<std::int64_t>(commit.value()), samples_trained}) *
      planned.LearningRateFactor();
  if (!global_batch.fixed()) decision.global_batch_size = global_batch.size();
  decision.clip_scale = ClipScale(set, decision.samples);
  decision.previous_hash = chain_hash;
  decision.hash = HashDecision(decision);

  commit = commit.Next();
  chain_hash = decision.hash;
  samples_trained += decision.samples;
  last_loss = decision.loss_sum / static_cast<double>(decision.samples);
  any_loss = true;
  if (last_commit_at && now > *last_commit_at) {
    commit_seconds = Smooth(commit_seconds, ToSeconds(now - *last_commit_at));
  }
  MeasureRate(decision.samples);
  last_commit_at = trained_until = now;
  FillRow(row, decision);
  row.global_batch_size = planned.size();
  record.training_seconds = TrainingSeconds(now);
  row.seconds = record.training_seconds;

  AppendLog(record);
  SendToServers(decision);
  unapplied.push_back(decision);
  ExpectNorms(decision);
  const std::int64_t completed_before = ledger->completed_epochs();
  for (const UpdateState& update : updates) {
    ledger->Spend(update.share.epoch, update.share.positions);
    if (const WorkerState* worker = workers.Find(update.share.worker)) {
      Send(worker->session, Outcome{update.share.update, true, decision.version});
    }
  }
  actions.push_back(CommitMetricsAction{std::move(row)});
  NoteCheckpointDue(ledger->completed_epochs() > completed_before);
  if (checkpoint_due && !checkpoint && !layout_next && !training_complete()) StartCheckpoint();
  EvictSlowest();
}

// --- granting -------------------------------------------------------------------------------------------------------

Duration Chief::Impl::TicketTime(const WorkerState& worker, std::int64_t count) const {
  const MembershipConfig& membership = options.experiment.membership;
  const Duration predicted = FromSeconds(worker.seconds_per_sample * static_cast<double>(count));
  return std::max(membership.ticket_deadline_floor,
                  FromSeconds(ToSeconds(predicted) * membership.ticket_deadline_factor));
}

std::optional<Share> Chief::Impl::CutShare(const WorkerState& worker, Epoch epoch, std::int64_t count) {
  Share share;
  share.positions = ledger->Take(epoch, count);
  if (share.positions.empty()) return std::nullopt;
  share.update = UpdateId{options.term, worker.incarnation, worker.next_sequence};
  workers.Change(worker, [](WorkerState& w) { ++w.next_sequence; });
  share.worker = worker.incarnation;
  share.epoch = epoch;
  return share;
}

void Chief::Impl::BindShare(const WorkerState& worker, Share share, SetNumber number, bool known, bool offer) {
  if (!first_ticket) first_ticket = now;
  const Duration time = TicketTime(worker, TotalSize(share.positions));
  const auto deadline_ms = time / std::chrono::milliseconds(1);
  if (known) {
    Send(worker.session, Bind{share.update, version(), deadline_ms, offer});
  } else {
    Send(worker.session, Ticket{share.update, share.epoch, share.positions, true, version(), deadline_ms, offer});
  }
  UpdateState update;
  update.rank = *worker.rank;
  update.set = number;
  update.bound_at = commit;
  update.offer = offer;
  update.deadline = now + time;
  update.staged.resize(servers.size());
  workers.Change(worker, [&share](WorkerState& w) { w.bound = share.update; });
  update.share = std::move(share);
  update.timing = TimingOf(worker, update.share);
  undecided.Bind(std::move(update));
}

void Chief::Impl::SendProvisional(const WorkerState& worker, Share share) {
  Ticket ticket{share.update, share.epoch, share.positions, false, {}, 0};
  if (options.experiment.train.sync.mode == SyncConfig::Mode::kBsp) {
    ticket.version = Version{generation, commit.Next()};
    ticket.deadline_ms = TicketTime(worker, TotalSize(share.positions)) / std::chrono::milliseconds(1);
  }
  Send(worker.session, std::move(ticket));
  workers.Change(worker, [&share](WorkerState& w) { w.provisional = std::move(share); });
}

std::optional<Share> Chief::Impl::TakeProvisional(const WorkerState& worker) {
  std::optional<Share> share;
  if (worker.provisional) workers.Change(worker, [&share](WorkerState& w) { share.swap(w.provisional); });
  return share;
}

void Chief::Impl::ReleaseProvisional(const WorkerState& worker) {
  if (const std::optional<Share> share = TakeProvisional(worker)) ledger->Return(share->epoch, share->positions);
}

void Chief::Impl::ReleaseProvisional() {
  while (!workers.with_provisional().empty()) ReleaseProvisional(workers.At(*workers.with_provisional().begin()));
  provisional_training.reset();
}

bool Chief::Impl::MayBindMore() const {
  if (layout_due) return false;
  if (unapplied.size() >= kMaxUnappliedDecisions) return false;
  const std::int64_t max_commits = options.experiment.train.max_commits;
  return max_commits == 0 || static_cast<std::int64_t>(commit.value() + undecided.sets().size()) < max_commits;
}

void Chief::Impl::Grant() {
  if (!FirstGrantMayCome()) return;
  const bool bsp = options.experiment.train.sync.mode == SyncConfig::Mode::kBsp;
  const bool may_bind = undecided.sets().empty() && MayBindMore();
  const bool planned = bsp && may_bind && PlannedStepStands();
  if (!bsp || (may_bind && !planned)) AdmitReady();
  if (workers.training() < options.experiment.membership.workers_min) {
    if (phase_deadline == kNever) Await(options.experiment.membership.join_timeout);
    return;
  }
  phase_deadline = kNever;
  if (bsp) PlanAheadAgain();
  bsp ? GrantBsp(planned) : GrantAsync();
}

// In mode off the batches are what the cluster file says, however small.
std::int64_t Chief::Impl::LeastBatch() const {
  const BatchingConfig& batching = options.experiment.batching;
  return batching.mode == BatchingConfig::Mode::kOff ? 1 : batching.min_batch_size;
}

// Shares of `total` samples for all admitted workers: by measured step times where batching.mode says so, else by
// weights. `again`: of a step that has been cut already.
std::map<Incarnation, std::int64_t> Chief::Impl::CutBatch(std::int64_t total, bool again) {
  std::map<Incarnation, std::int64_t> counts;
  if (batches) {
    // An epoch that has no more than that, or less, is planned like any step where everybody gets enough of it.
    const bool whole = total == global_batch.size() ||
                       (total == StepSamples() && total >= LeastBatch() * static_cast<std::int64_t>(batches->size()));
    auto plan = !whole ? batches->PlanRemainder(total) : again ? batches->PlanAgain(total) : batches->Plan(total);
    if (plan.ok()) {
      for (const BatchShare& share : *plan) counts[share.worker] = share.batch;
      if (std::exchange(said_plans, batches->plans()) != batches->plans()) Say(BatchesLine());
      if (whole) said_bounds.clear();
      const bool over = batches->MemoryOver() > 1;
      if (std::exchange(said_memory, over) != over && over) {
        Say(absl::StrFormat(
                "the workers' memory holds about %d samples together, the global batch has %d: they may run "
                "out of it; more workers or a smaller train.global_batch_size would help",
                batches->Holds(), total),
            LogLevel::kWarning);
      }
      return counts;
    }
    if (whole) SayBounds(absl::StrCat("batches are cut evenly: ", std::string(plan.status().message())));
  }
  const std::vector<const WorkerState*> members = workers.TrainingByRank();
  std::vector<double> weights;
  for (const WorkerState* worker : members) weights.push_back(worker->weight);
  const std::int64_t most = options.experiment.batching.max_batch_size;
  const auto count = static_cast<std::int64_t>(members.size());
  if (!batches && total == global_batch.size() &&
      (LeastBatch() * count > total || (most > 0 && most * count < total))) {
    SayBounds(absl::StrCat("batching.", most > 0 && most * count < total ? "max_batch_size" : "min_batch_size",
                           " does not bind: ", count, " workers cannot keep it with a global batch of ", total));
  }
  const std::vector<std::int64_t> shares = SplitBatch(total, weights, SplitBounds{LeastBatch(), most});
  for (std::size_t i = 0; i < members.size(); ++i) counts[members[i]->incarnation] = shares[i];
  return counts;
}

// Why a bound of the batches does not hold. Once, until it does again or is another one.
void Chief::Impl::SayBounds(std::string text) {
  if (text == said_bounds) return;
  said_bounds = std::move(text);
  Say(said_bounds, LogLevel::kWarning);
}

// The B lowest free positions of the next epoch, cut in rank order by the workers' weights.
std::vector<Share> Chief::Impl::PlanStep(bool* last_of_epoch, bool again) {
  std::vector<Share> shares;
  const std::optional<Epoch> epoch = ledger->NextEpoch();
  if (!epoch) return shares;
  const std::int64_t free = ledger->FreeIn(*epoch);
  const std::int64_t total = std::min(StepSamples(), free);
  *last_of_epoch = total == free;
  const std::map<Incarnation, std::int64_t> counts = CutBatch(total, again);
  for (const WorkerState* worker : workers.TrainingByRank()) {
    const std::int64_t count = counts.at(worker->incarnation);
    if (count > 0) shares.push_back(*CutShare(*worker, *epoch, count));
  }
  return shares;
}

bool Chief::Impl::PlannedForMembers() const {
  return provisional_training == workers.training_changes() && ledger->returns() == provisional_returns;
}

// What the workers read ahead for is still what they are to compute.
bool Chief::Impl::PlannedStepStands() {
  return provisional_training && !workers.with_provisional().empty() && PlannedForMembers() &&
         provisional_global_batch == global_batch.size() && PlanStands();
}

// Who leaves says so, and who is lost is found out, while a step is under way: the next one's input is asked for anew
// at once, and not when all wait for it. Once a step, for its end plans anew too; so not before it is known whether the
// samples of who was lost return.
void Chief::Impl::PlanAheadAgain() {
  if (undecided.sets().empty() || !provisional_training || planned_ahead_again || PlannedForMembers()) return;
  const bool open = std::any_of(undecided.fenced().begin(), undecided.fenced().end(),
                                [this](UpdateId id) { return !undecided.At(id).staged_everywhere(); });
  if (open) return;
  planned_ahead_again = true;
  ReleaseProvisional();
  AdmitReady();
  PlanAhead(/*again=*/true);
}

// Input for the step after the one that is under way may be read meanwhile.
void Chief::Impl::PlanAhead(bool again) {
  const std::int64_t max_commits = options.experiment.train.max_commits;
  if (max_commits > 0 && static_cast<std::int64_t>(commit.value()) + 2 > max_commits) return;
  bool ignored = false;
  for (Share& share : PlanStep(&ignored, again)) SendProvisional(workers.At(share.worker), std::move(share));
  provisional_returns = ledger->returns();
  provisional_global_batch = global_batch.size();
  provisional_training = workers.training_changes();
}

// Who is ready to join takes part from the step after a planned one on: nobody's input is read for nothing, and its own
// is there when it is its turn.
void Chief::Impl::GrantBsp(bool planned) {
  if (!undecided.sets().empty() || !undecided.updates().empty() || !MayBindMore()) return;
  bool last_of_epoch = false;
  std::vector<Share> shares;
  if (planned) {
    for (const WorkerState* worker : workers.TrainingByRank()) {
      if (std::optional<Share> share = TakeProvisional(*worker)) shares.push_back(*std::move(share));
    }
    last_of_epoch = !shares.empty() && ledger->FreeIn(shares.front().epoch) == 0;
  } else {
    const bool again = provisional_training.has_value();  // this step has been planned before
    ReleaseProvisional();
    shares = PlanStep(&last_of_epoch, again);
  }
  provisional_training.reset();
  if (shares.empty()) return;
  last_set = last_set.Next();
  if (last_of_epoch) undecided.MarkEpochEnd(last_set);
  const auto before = static_cast<std::ptrdiff_t>(actions.size());
  const std::uint32_t slots = StageSlots(servers.size());
  if (slots > 0 && shares.size() > slots) undecided.MarkFolded(last_set);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const WorkerState& worker = workers.At(shares[i].worker);
    BindShare(worker, std::move(shares[i]), last_set, planned, /*offer=*/slots > 0 && i >= slots);
  }
  if (options.experiment.train.sync.backup_workers == 0) {
    // First, for what a worker stages finds room by it.
    const auto tickets = static_cast<std::ptrdiff_t>(actions.size()) - before;
    SendSeal(last_set);
    std::rotate(actions.begin() + before, actions.begin() + before + tickets, actions.end());
  }

  AdmitReady();
  PlanAhead();
  planned_ahead_again = false;
}

std::int64_t Chief::Impl::AsyncBatch(const WorkerState& worker) {
  // A round is about one commit a worker; then the shares are looked at again.
  const bool stale = commit.value() - async_round.value() >= async_shares.size();
  if (async_epoch != membership_epoch || stale || !async_shares.contains(worker.incarnation)) {
    async_shares = CutBatch(StepSamples());
    async_round = commit;
    async_epoch = membership_epoch;
  }
  return std::max<std::int64_t>(1, async_shares.at(worker.incarnation));
}

// ASP and SSP: each update is a set of its own. The slowest first, so that samples never wait for a worker that may not
// take them.
void Chief::Impl::GrantAsync() {
  const SyncConfig& sync = options.experiment.train.sync;
  std::int64_t most = INT64_MAX;  // clock that may be given a ticket
  if (sync.mode == SyncConfig::Mode::kSsp) most = workers.LeastHeldClock().value_or(0) + sync.staleness;
  if (most < INT64_MAX) {
    const auto& ahead = workers.idle_with_provisional();
    const WorkerTable::IdleKey above{most + 1, Rank(0), Incarnation{}};
    for (auto it = ahead.lower_bound(above); it != ahead.end(); it = ahead.lower_bound(above)) {
      ReleaseProvisional(workers.At(it->worker));
    }
  }
  // Whoever is bound leaves the list.
  WorkerTable::IdleKey last;
  for (auto next = workers.idle().begin(); next != workers.idle().end(); next = workers.idle().upper_bound(last)) {
    last = *next;
    if (last.clock > most || !MayBindMore()) return;
    if (!BindIdle(workers.At(last.worker))) return;
  }
}

// False when there is nothing to compute, for nobody.
bool Chief::Impl::BindIdle(const WorkerState& worker) {
  std::optional<Share> share = TakeProvisional(worker);
  const bool known = share.has_value();
  if (!share) {
    std::optional<Epoch> epoch = ledger->NextEpoch();
    if (!epoch) {
      // What is only read ahead elsewhere can be computed here at once.
      while (!workers.with_provisional().empty()) ReleaseProvisional(workers.At(*workers.with_provisional().begin()));
      epoch = ledger->NextEpoch();
    }
    if (!epoch) return false;
    share = CutShare(worker, *epoch, AsyncBatch(worker));
  }
  last_set = last_set.Next();
  BindShare(worker, std::move(*share), last_set, known, /*offer=*/false);
  SendSeal(last_set);
  // Read ahead only while enough is free for everybody: at the end no sample may wait for a slow worker.
  const std::int64_t batch = AsyncBatch(worker);
  if (!MayBindMore() || ledger->FreeTotal() < 2 * global_batch.size()) return true;
  const std::optional<Epoch> next = ledger->NextEpoch();
  if (next) SendProvisional(worker, *CutShare(worker, *next, batch));
  return true;
}

}  // namespace evenkeel
