// An update's life: shares are cut, tickets bind, servers stage and seal, sets commit.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr double kSmoothing = 0.2;

double Smooth(double old, double fresh) { return old > 0 ? old + kSmoothing * (fresh - old) : fresh; }

}  // namespace

// --- reports --------------------------------------------------------------------------------------------------------

void Chief::Impl::OnStaged(ServerState& server, Staged& staged) {
  auto it = updates.find(staged.update);
  if (it == updates.end()) return;
  UpdateState& update = it->second;
  if (staged.non_finite > 0) {
    auto holder = workers.find(update.share.worker);
    const std::string name =
        holder == workers.end() ? absl::StrCat("incarnation ", update.share.worker.value()) : holder->second.name;
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
  update.staged[static_cast<std::size_t>(&server - servers.data())] = std::move(staged);
  if (update.staged_everywhere()) TimeStaged(update);
}

void Chief::Impl::OnSealed(ServerState& server, Sealed& sealed) {
  auto it = sets.find(sealed.set);
  if (it == sets.end() || it->second.attempt != sealed.attempt || !it->second.seal_sent) return;
  const auto index = static_cast<std::size_t>(&server - servers.data());
  it->second.sealed[index] = true;
  it->second.norms[index] = std::move(sealed.norms);
}

void Chief::Impl::OnApplied(ServerState& server, const Applied& applied) {
  if (applied.version.generation != generation) return;
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
  WorkerState* worker = WorkerBySession(session);
  if (report.samples <= 0 || !(report.compute_seconds >= 0)) return;
  worker->step_seconds = report.compute_seconds;
  worker->seconds_per_sample =
      Smooth(worker->seconds_per_sample, report.compute_seconds / static_cast<double>(report.samples));
  if (auto it = updates.find(report.update); it != updates.end() && it->second.share.worker == worker->incarnation) {
    it->second.compute_seconds = report.compute_seconds;
    it->second.first_of_size = report.first_of_size;
    TimeStaged(it->second);
  }
  WorkerTotals& total = totals[worker->name];
  ++total.steps;
  total.step_seconds += report.compute_seconds;
}

// --- lost workers' updates ------------------------------------------------------------------------------------------

void Chief::Impl::ResolveFenced() {
  std::vector<UpdateId> lost;
  for (const auto& [id, update] : updates) {
    if (!update.fenced_in || update.staged_everywhere()) continue;
    const bool known =
        std::all_of(servers.begin(), servers.end(), [&](const ServerState& s) { return s.acked >= *update.fenced_in; });
    if (known) lost.push_back(id);
  }
  for (UpdateId id : lost) DropUpdate(id, "its worker was lost before every server had it");
}

void Chief::Impl::DropUpdate(UpdateId id, const std::string& reason) {
  auto it = updates.find(id);
  if (it == updates.end()) return;
  UpdateState update = std::move(it->second);
  updates.erase(it);
  ++dropped_updates;
  ledger->Return(update.share.epoch, update.share.positions);
  SendToServers(Drop{{id}});
  if (auto worker = workers.find(update.share.worker); worker != workers.end()) {
    worker->second.bound.reset();
    Send(worker->second.session, Outcome{id, false, {}});
  }
  Say(absl::StrCat("dropped ", ToString(id), " with ", TotalSize(update.share.positions), " samples: ", reason));
  auto set = sets.find(update.set);
  std::erase(set->second.updates, id);
  if (set->second.updates.empty()) {
    sets.erase(set);
    return;
  }
  if (!set->second.seal_sent) return;
  ++set->second.attempt;
  SendSeal(set->first, set->second);
}

// --- sealing --------------------------------------------------------------------------------------------------------

void Chief::Impl::SendSeal(SetNumber number, SetState& set) {
  set.seal_sent = true;
  set.sealed.assign(servers.size(), false);
  set.norms.assign(servers.size(), {});
  SendToServers(Seal{number, set.attempt, set.updates});
}

// BSP with backup workers: once all but `backup_workers` of the step's updates are complete everywhere, the others are
// let go and their samples return.
void Chief::Impl::ChooseWithBackups() {
  const SyncConfig& sync = options.experiment.train.sync;
  if (sync.mode != SyncConfig::Mode::kBsp || sync.backup_workers == 0 || sets.empty()) return;
  const SetNumber number = sets.begin()->first;
  SetState& set = sets.begin()->second;
  if (set.seal_sent) return;
  std::vector<UpdateId> late;
  for (UpdateId id : set.updates) {
    if (!updates.at(id).staged_everywhere()) late.push_back(id);
  }
  const auto holders = static_cast<std::int64_t>(set.updates.size());
  const std::int64_t spare = set.whole_epoch_end ? 0 : std::min(sync.backup_workers, holders - 1);
  if (static_cast<std::int64_t>(late.size()) > spare) return;
  for (UpdateId id : late) TimeDropped(updates.at(id));
  for (UpdateId id : late) DropUpdate(id, "the step went on without it (backup workers)");
  SendSeal(number, sets.at(number));
}

// --- committing -----------------------------------------------------------------------------------------------------

bool Chief::Impl::CommitNext() {
  if (training_complete()) return false;
  for (auto& [number, set] : sets) {
    if (!set.seal_sent || std::find(set.sealed.begin(), set.sealed.end(), false) != set.sealed.end()) continue;
    const bool complete = std::all_of(set.updates.begin(), set.updates.end(),
                                      [&](UpdateId id) { return updates.at(id).staged_everywhere(); });
    if (!complete) continue;
    Commit(number);
    return true;
  }
  return false;
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

void Chief::Impl::Commit(SetNumber number) {
  SetState set = std::move(sets.at(number));
  sets.erase(number);
  const TrainConfig& train = options.experiment.train;
  CommitRecord record;
  Decision& decision = record.decision;
  decision.version = Version{generation, commit.Next()};
  decision.set = number;
  decision.attempt = set.attempt;
  CommitRow row;
  for (UpdateId id : set.updates) {
    UpdateState& update = updates.at(id);
    TimeDecided(update);
    decision.samples += update.staged[0]->samples;
    decision.loss_sum += update.staged[0]->loss_sum;
    CommittedUpdate committed{id, update.rank, update.share.epoch, update.share.positions, 0, update.bound_at, {}};
    CommitNumber oldest = commit;
    for (const auto& staged : update.staged) {
      committed.computed_on.push_back(staged->computed_on);
      oldest = std::min(oldest, staged->computed_on.commit);
    }
    CommitRow::Worker in_row;
    in_row.rank = update.rank;
    in_row.batch = TotalSize(update.share.positions);
    in_row.staleness = static_cast<std::int64_t>(commit.value() - oldest.value());
    if (auto it = workers.find(update.share.worker); it != workers.end()) {
      committed.clock = ++it->second.clock;
      in_row.name = it->second.name;
      in_row.step_seconds = it->second.step_seconds;
      in_row.busy_seconds = it->second.busy_seconds;
      in_row.predicted_seconds = it->second.predicted_seconds;
      in_row.waiting_share = it->second.waiting_share;
      WorkerTotals& total = totals[it->second.name];
      ++total.commits;
      total.samples += in_row.batch;
    }
    row.workers.push_back(std::move(in_row));
    decision.updates.push_back(std::move(committed));
  }
  const TrainingLength length{train.max_commits, train.epochs * samples, samples};
  decision.learning_rate =
      LearningRate(train.schedule, length, Progress{static_cast<std::int64_t>(commit.value()), samples_trained});
  decision.clip_scale = ClipScale(set, decision.samples);
  decision.previous_hash = chain_hash;
  decision.hash = HashDecision(decision);

  commit = commit.Next();
  chain_hash = decision.hash;
  samples_trained += decision.samples;
  last_loss = decision.loss_sum / static_cast<double>(decision.samples);
  any_loss = true;
  if (last_commit_at && now > *last_commit_at) {
    rate = Smooth(rate, static_cast<double>(decision.samples) / ToSeconds(now - *last_commit_at));
  }
  last_commit_at = now;
  row.version = decision.version;
  row.samples = decision.samples;
  row.samples_trained = samples_trained;
  row.epoch = static_cast<double>(samples_trained) / static_cast<double>(samples);
  row.loss = last_loss;
  row.learning_rate = decision.learning_rate;
  row.seconds = first_ticket ? ToSeconds(now - *first_ticket) : 0;
  row.examples_per_second = rate;
  row.dropped_updates = dropped_updates;

  AppendLog(record);
  SendToServers(decision);
  unapplied.push_back(decision);
  const std::int64_t completed_before = ledger->completed_epochs();
  for (UpdateId id : set.updates) {
    UpdateState update = std::move(updates.at(id));
    updates.erase(id);
    ledger->Spend(update.share.epoch, update.share.positions);
    if (auto it = workers.find(update.share.worker); it != workers.end()) {
      it->second.bound.reset();
      Send(it->second.session, Outcome{id, true, decision.version});
    }
  }
  actions.push_back(CommitMetricsAction{std::move(row)});
  NoteCheckpointDue(ledger->completed_epochs() > completed_before);
  if (checkpoint_due && !checkpoint && !layout_wanted && !training_complete()) StartCheckpoint();
}

// --- granting -------------------------------------------------------------------------------------------------------

Duration Chief::Impl::TicketTime(const WorkerState& worker, std::int64_t count) const {
  const MembershipConfig& membership = options.experiment.membership;
  const Duration predicted = FromSeconds(worker.seconds_per_sample * static_cast<double>(count));
  return std::max(membership.ticket_deadline_floor,
                  FromSeconds(ToSeconds(predicted) * membership.ticket_deadline_factor));
}

std::optional<Share> Chief::Impl::CutShare(WorkerState& worker, Epoch epoch, std::int64_t count) {
  Share share;
  share.positions = ledger->Take(epoch, count);
  if (share.positions.empty()) return std::nullopt;
  share.update = UpdateId{options.term, worker.incarnation, worker.next_sequence++};
  share.worker = worker.incarnation;
  share.epoch = epoch;
  return share;
}

void Chief::Impl::BindShare(WorkerState& worker, Share share, SetNumber number, bool known) {
  if (!first_ticket) first_ticket = now;
  const Duration time = TicketTime(worker, TotalSize(share.positions));
  const auto deadline_ms = time / std::chrono::milliseconds(1);
  if (known) {
    Send(worker.session, Bind{share.update, version(), deadline_ms});
  } else {
    Send(worker.session, Ticket{share.update, share.epoch, share.positions, true, version(), deadline_ms});
  }
  UpdateState update;
  update.rank = *worker.rank;
  update.set = number;
  update.bound_at = commit;
  update.deadline = now + time;
  update.staged.resize(servers.size());
  worker.bound = share.update;
  update.share = std::move(share);
  TimeBound(worker, update);
  sets[number].updates.push_back(*worker.bound);
  updates.emplace(*worker.bound, std::move(update));
}

void Chief::Impl::SendProvisional(WorkerState& worker, Share share) {
  Send(worker.session, Ticket{share.update, share.epoch, share.positions, false, {}, 0});
  worker.provisional = std::move(share);
}

void Chief::Impl::ReleaseProvisional(WorkerState& worker) {
  if (!worker.provisional) return;
  ledger->Return(worker.provisional->epoch, worker.provisional->positions);
  worker.provisional.reset();
}

void Chief::Impl::ReleaseProvisional() {
  for (auto& [incarnation, worker] : workers) ReleaseProvisional(worker);
  provisional_members.clear();
}

bool Chief::Impl::MayBindMore() const {
  if (layout_due) return false;
  if (unapplied.size() >= kMaxUnappliedDecisions) return false;
  const std::int64_t max_commits = options.experiment.train.max_commits;
  return max_commits == 0 || static_cast<std::int64_t>(commit.value() + sets.size()) < max_commits;
}

void Chief::Impl::Grant() {
  if (!FirstGrantMayCome()) return;
  const bool bsp = options.experiment.train.sync.mode == SyncConfig::Mode::kBsp;
  if (!bsp || sets.empty()) AdmitReady();
  if (AdmittedCount() < options.experiment.membership.workers_min) {
    if (phase_deadline == kNever) phase_deadline = now + options.experiment.membership.join_timeout;
    return;
  }
  phase_deadline = kNever;
  bsp ? GrantBsp() : GrantAsync();
}

// Shares of `total` samples for all admitted workers: by measured step times where batching.mode says so, else by
// weights.
std::map<Incarnation, std::int64_t> Chief::Impl::CutBatch(std::int64_t total) {
  std::map<Incarnation, std::int64_t> counts;
  if (batches) {
    const bool whole = total == options.experiment.train.global_batch_size;
    auto plan = whole ? batches->Plan(total) : batches->PlanRemainder(total);
    if (plan.ok()) {
      for (const BatchShare& share : *plan) counts[share.worker] = share.batch;
      if (std::exchange(said_plans, batches->plans()) != batches->plans()) Say(BatchesLine());
      return counts;
    }
    if (!std::exchange(said_bounds, true)) {
      Say(absl::StrCat("batches are cut evenly: ", std::string(plan.status().message())), LogLevel::kWarning);
    }
  }
  const std::vector<WorkerState*> members = AdmittedByRank();
  std::vector<double> weights;
  for (const WorkerState* worker : members) weights.push_back(worker->weight);
  const BatchingConfig& batching = options.experiment.batching;
  const std::vector<std::int64_t> shares =
      SplitBatch(total, weights, SplitBounds{batching.min_batch_size, batching.max_batch_size});
  for (std::size_t i = 0; i < members.size(); ++i) counts[members[i]->incarnation] = shares[i];
  return counts;
}

// The B lowest free positions of the next epoch, cut in rank order by the workers' weights.
std::vector<Share> Chief::Impl::PlanStep(bool* last_of_epoch) {
  std::vector<Share> shares;
  const std::optional<Epoch> epoch = ledger->NextEpoch();
  if (!epoch) return shares;
  const std::int64_t free = ledger->FreeIn(*epoch);
  const std::int64_t total = std::min(options.experiment.train.global_batch_size, free);
  *last_of_epoch = total == free;
  const std::map<Incarnation, std::int64_t> counts = CutBatch(total);
  for (WorkerState* worker : AdmittedByRank()) {
    const std::int64_t count = counts.at(worker->incarnation);
    if (count > 0) shares.push_back(*CutShare(*worker, *epoch, count));
  }
  return shares;
}

void Chief::Impl::GrantBsp() {
  if (!sets.empty() || !updates.empty() || !MayBindMore()) return;
  std::vector<Incarnation> members;
  for (const WorkerState* worker : AdmittedByRank()) members.push_back(worker->incarnation);
  const bool planned = !provisional_members.empty();
  const bool valid =
      planned && members == provisional_members && ledger->returns() == provisional_returns && PlanStands();
  bool last_of_epoch = false;
  std::vector<Share> shares;
  if (valid) {
    for (WorkerState* worker : AdmittedByRank()) {
      if (!worker->provisional) continue;
      shares.push_back(*std::exchange(worker->provisional, std::nullopt));
    }
    last_of_epoch = !shares.empty() && ledger->FreeIn(shares.front().epoch) == 0;
  } else {
    ReleaseProvisional();
    shares = PlanStep(&last_of_epoch);
  }
  provisional_members.clear();
  if (shares.empty()) return;
  last_set = last_set.Next();
  sets[last_set].whole_epoch_end = last_of_epoch;
  for (Share& share : shares) BindShare(workers.at(share.worker), std::move(share), last_set, valid);
  if (options.experiment.train.sync.backup_workers == 0) SendSeal(last_set, sets.at(last_set));

  // Input for the step after this one may be read meanwhile.
  const std::int64_t max_commits = options.experiment.train.max_commits;
  if (max_commits > 0 && static_cast<std::int64_t>(commit.value()) + 2 > max_commits) return;
  bool ignored = false;
  for (Share& share : PlanStep(&ignored)) SendProvisional(workers.at(share.worker), std::move(share));
  provisional_returns = ledger->returns();
  provisional_members = std::move(members);
}

std::int64_t Chief::Impl::AsyncBatch(const WorkerState& worker) {
  // A round is about one commit a worker; then the shares are looked at again.
  const bool stale = commit.value() - async_round.value() >= async_shares.size();
  if (async_epoch != membership_epoch || stale || !async_shares.contains(worker.incarnation)) {
    async_shares = CutBatch(options.experiment.train.global_batch_size);
    async_round = commit;
    async_epoch = membership_epoch;
  }
  return std::max<std::int64_t>(1, async_shares.at(worker.incarnation));
}

bool Chief::Impl::WithinStaleness(const WorkerState& worker) const {
  const SyncConfig& sync = options.experiment.train.sync;
  if (sync.mode != SyncConfig::Mode::kSsp) return true;
  std::int64_t least = worker.clock;
  for (const auto& [incarnation, other] : workers) {
    if (other.rank && (other.bound || !other.leaving)) least = std::min(least, other.clock);
  }
  return worker.clock - least <= sync.staleness;
}

// ASP and SSP: each update is a set of its own. The slowest first, so that samples never wait for a worker that may not
// take them.
void Chief::Impl::GrantAsync() {
  std::vector<WorkerState*> idle = AdmittedByRank();
  std::erase_if(idle, [](const WorkerState* worker) { return worker->bound.has_value(); });
  std::stable_sort(idle.begin(), idle.end(), [](auto* a, auto* b) { return a->clock < b->clock; });
  for (WorkerState* worker : idle) {
    if (!WithinStaleness(*worker)) ReleaseProvisional(*worker);
  }
  for (WorkerState* worker : idle) {
    if (!MayBindMore()) break;
    if (!WithinStaleness(*worker)) continue;
    const bool known = worker->provisional.has_value();
    std::optional<Share> share = std::exchange(worker->provisional, std::nullopt);
    if (!share) {
      std::optional<Epoch> epoch = ledger->NextEpoch();
      if (!epoch) {
        // What is only read ahead elsewhere can be computed here at once.
        for (auto& [incarnation, other] : workers) ReleaseProvisional(other);
        epoch = ledger->NextEpoch();
      }
      if (!epoch) continue;
      share = CutShare(*worker, *epoch, AsyncBatch(*worker));
    }
    last_set = last_set.Next();
    BindShare(*worker, std::move(*share), last_set, known);
    SendSeal(last_set, sets.at(last_set));
    // Read ahead only while enough is free for everybody: at the end no sample may wait for a slow worker.
    const std::int64_t batch = AsyncBatch(*worker);
    if (!MayBindMore() || ledger->FreeTotal() < 2 * options.experiment.train.global_batch_size) continue;
    const std::optional<Epoch> next = ledger->NextEpoch();
    if (next) SendProvisional(*worker, *CutShare(*worker, *next, batch));
  }
}

}  // namespace evenkeel
