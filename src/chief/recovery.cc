// What survives: a restarted chief takes up the log's line where the servers still hold it; else, and when a server is
// lost, all go back to the last checkpoint.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

void Chief::Impl::OpenTerm(std::int64_t unix_ms) {
  const std::optional<Manifest>& newest = options.resume;
  TermRecord term{options.term, job_id, options.experiment.spec_hash, unix_ms, {}, options.experiment.canonical_json};
  if (newest) term.resumed_from = newest->version;
  const bool fresh = log.generation == Generation{};
  samples_rolled_back = std::max<std::int64_t>(0, log.samples_committed - (newest ? newest->samples_trained : 0));
  // A line is what one generation holds after the checkpoint that it began with, or made.
  recovering = newest && log.layout && log.layout->layout == layout &&
               (newest->version.generation == log.generation ||
                (!log.rollbacks.empty() && log.rollbacks.back().checkpoint == newest->version));
  seconds_before = log.training_seconds;
  if (seconds_before <= 0) samples_untimed = log.samples_committed;
  AppendLog(term);
  if (recovering) {
    generation = log.generation;
    Say(absl::StrCat("resuming job ", job_id, " from checkpoint ", CheckpointName(newest->version),
                     " and what its servers still hold"));
    return;
  }
  FenceFormer();
  generation = log.NewGeneration(options.term);
  if (!fresh || newest) AppendLog(RollbackRecord{generation, newest ? newest->version : Version{}});
  Say(newest ? absl::StrCat("resuming job ", job_id, " from checkpoint ", CheckpointName(newest->version))
             : absl::StrCat(fresh ? "new job " : "starting anew: job ", job_id));
}

void Chief::Impl::FenceFormer() {
  const std::map<Incarnation, LogHistory::Member> former = log.members;
  for (const auto& [incarnation, member] : former) {
    membership_epoch = membership_epoch.Next();
    AppendLog(FenceRecord{incarnation, membership_epoch, "the job starts anew"});
  }
}

// From the seed, whatever the checkpoint holds.
void Chief::Impl::BeginAnew() {
  options.resume.reset();
  recovering = false;
  FenceFormer();
  generation = log.NewGeneration(options.term);
  AppendLog(RollbackRecord{generation, Version{}});
  ForgetTraining();
}

void Chief::Impl::ForgetTraining() {
  ledger.emplace(samples, options.experiment.train.epochs);
  samples_trained = 0;
  chain_hash = 0;
  totals.clear();
  global_batch.BeginAnew();
  if (noise) noise.emplace(options.experiment.batching.gradnorm_window);
}

// After the checkpoint's state is loaded: the commits that the log holds, and the members.
absl::Status Chief::Impl::TakeUpLog() {
  base_hash = chain_hash;
  for (const Decision& decision : log.commits) {
    for (const CommittedUpdate& update : decision.updates) {
      const auto epoch = static_cast<std::int64_t>(update.epoch.value());
      if (epoch < options.experiment.train.epochs) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "train.epochs is ", options.experiment.train.epochs, ", but the job in ", options.model_dir,
          " has trained in epoch ", epoch + 1, " already; at least ", epoch + 1, " is wanted, or another model_dir"));
    }
  }
  // A machine that stopped may have lost the end of a segment, but not all of the next one: what follows a gap is as
  // lost as the gap.
  std::erase_if(log.commits, [this](const Decision& decision) { return decision.version.commit <= commit; });
  for (std::size_t i = 0; i < log.commits.size(); ++i) {
    if (log.commits[i].version.commit != commit.Next()) log.commits.resize(i);
    if (i < log.commits.size()) EK_RETURN_IF_ERROR(Annotate(Adopt(log.commits[i]), "[chief] commit log"));
  }
  for (const auto& [incarnation, member] : log.members) {
    WorkerState taken_up;
    taken_up.name = member.admission.name;
    taken_up.nonce = member.admission.nonce;
    taken_up.incarnation = incarnation;
    taken_up.ready = taken_up.taken_up = true;
    taken_up.rank = member.admission.rank;
    taken_up.clock = member.clock;
    taken_up.state = "not back since the chief was started again";
    taken_up.compute_fingerprint = member.admission.compute_fingerprint;
    taken_up.weight = WeightOf(taken_up.name);
    const WorkerState& worker = workers.Add(std::move(taken_up));
    leases.Grant(incarnation, now);
    totals.try_emplace(worker.name);
    JoinBatches(worker);
  }
  return absl::OkStatus();
}

// A decision of an earlier term counts. Errors: kDataLoss when it does not follow what there is.
absl::Status Chief::Impl::Adopt(const Decision& decision) {
  const std::string name = absl::StrCat("decision ", ToString(decision.version));
  if (decision.version != Version{generation, commit.Next()} || decision.previous_hash != chain_hash ||
      decision.hash != HashDecision(decision)) {
    return absl::DataLossError(absl::StrCat(name, " with hash ", decision.hash, " does not follow ",
                                            ToString(version()), " with hash ", chain_hash));
  }
  const std::int64_t completed_before = ledger->completed_epochs();
  for (const CommittedUpdate& update : decision.updates) {
    EK_RETURN_IF_ERROR(Annotate(ledger->Adopt(update.epoch, update.positions), name));
    CountCommitted(update.update.incarnation, TotalSize(update.positions));
    if (const WorkerState* worker = workers.Find(update.update.incarnation)) {
      workers.Change(*worker, [&update](WorkerState& w) { w.clock = ClockAfter(update, w.clock); });
    }
  }
  commit = commit.Next();
  chain_hash = decision.hash;
  samples_trained += decision.samples;
  samples_rolled_back -= decision.samples;
  last_loss = decision.loss_sum / static_cast<double>(decision.samples);
  any_loss = true;
  actions.push_back(CommitMetricsAction{RowOfAdopted(decision)});  // the one before may not have written it
  if (decision.global_batch_size > 0 && decision.global_batch_size != global_batch.size()) {
    global_batch.Restore(decision.global_batch_size, noise ? noise->steps() : 0);
  }
  NoteCheckpointDue(ledger->completed_epochs() > completed_before);
  return absl::OkStatus();
}

CommitRow Chief::Impl::RowOfAdopted(const Decision& decision) const {
  CommitRow row;
  FillRow(row, decision);
  row.adopted = true;
  row.examples_per_second.reset();
  row.gradient_norm.reset();
  row.noise_scale.reset();
  row.statistical_efficiency.reset();
  for (const CommittedUpdate& update : decision.updates) {
    CommitRow::Worker& worker = row.workers.emplace_back();
    worker.name = NameOfWorker(update.update.incarnation);
    worker.rank = update.rank;
    worker.batch = TotalSize(update.positions);
    CommitNumber oldest(decision.version.commit.value() - 1);
    for (const Version& version : update.computed_on) oldest = std::min(oldest, version.commit);
    worker.staleness = static_cast<std::int64_t>(decision.version.commit.value() - 1 - oldest.value());
  }
  return row;
}

// Whether the server in this place may hold what the log goes on from.
bool Chief::Impl::HoldsLine(const Holding& holding, ServerIndex place) const {
  return holding.layout == layout && holding.servers == servers.size() && holding.server == place &&
         holding.decided.generation == generation;
}

// Of a restarted chief, whose job's processes live on: a server that is seated holds nothing. The one that held what
// the log goes on from may be on its way back, where another process with the name was faster.
bool Chief::Impl::AwaitsFormer() const {
  if (phase != Phase::kGathering || !recovering || tensors.empty() || now >= FormerAwaitedUntil()) return false;
  bool lives_on = members_came_back, empty = false;
  for (const ServerState& server : servers) {
    if (server.incarnation == Incarnation{}) return false;
    lives_on |= HoldsLine(server.holding, PlaceOf(server));
    empty |= server.holding == Holding{};
  }
  return lives_on && empty;
}

// Long before the wait for servers is over.
TimePoint Chief::Impl::FormerAwaitedUntil() const {
  return started + std::min(kFormerMayReturn, options.experiment.membership.ps_timeout / 2);
}

// All servers are there: do they hold the log's line, and more of it than the log?
void Chief::Impl::TakeUpServers() {
  Version newest = version();
  std::vector<std::string> without;
  for (std::uint32_t i = 0; i < servers.size(); ++i) {
    const Holding& holding = servers[i].holding;
    const bool fits = HoldsLine(holding, ServerIndex(i)) && holding.decided.commit >= durable->version.commit;
    if (!fits) without.push_back(servers[i].name);
    newest = std::max(newest, holding.decided);
  }
  if (!without.empty()) {
    return RollBack(absl::StrCat(absl::StrJoin(without, ", "), without.size() == 1 ? " does" : " do",
                                 " not hold what the log goes on from"));
  }
  if (!HashesAgree()) return;
  if (newest == version()) return ContinueServers();
  phase = Phase::kReading;
  Await(options.experiment.membership.ps_timeout);
  reading = newest;
  Say(absl::StrCat("the log ends at ", ToString(version()), ", the servers are at ", ToString(newest),
                   ": adopting what it has lost"));
  for (const ServerState& server : servers) {
    if (server.holding.decided == newest) return Send(server.session, ReadDecisions{version()});
  }
}

// A server that has obeyed another decision than the log's (or than another server) can never be brought in line.
bool Chief::Impl::HashesAgree() {
  for (const ServerState& server : servers) {
    const Holding& holding = server.holding;
    if (holding.hash == 0 || holding.decided > version()) continue;
    std::uint64_t expected = base_hash;
    for (const Decision& decision : log.commits) {
      if (decision.version == holding.decided) expected = decision.hash;
    }
    if (expected == holding.hash) continue;
    Fail(absl::InternalError(absl::StrCat(server.name, " has obeyed decision ", ToString(holding.decided),
                                          " with hash ", holding.hash, ", but the log's has hash ", expected,
                                          ": two chiefs have decided; restart servers and chief to go on from ",
                                          CheckpointName(durable->version))));
    return false;
  }
  return true;
}

void Chief::Impl::OnKeptDecisions(ServerState& server, const KeptDecisions& kept) {
  if (phase != Phase::kReading || server.holding.decided != *reading) return;
  if (kept.decisions.empty() ? version() < *reading : kept.decisions.front().version.commit > commit.Next()) {
    return RollBack(absl::StrCat(server.name, " has not kept the decisions that the log has lost"));
  }
  for (const Decision& decision : kept.decisions) {
    if (decision.version.commit <= commit) continue;
    if (absl::Status status = Adopt(decision); !status.ok()) {
      return Fail(Annotate(status, absl::StrCat("[chief] what ", server.name, " has kept")));
    }
    AppendLog(CommitRecord{decision, 0});
  }
  if (version() < *reading) return;  // more follows
  reading.reset();
  if (HashesAgree()) ContinueServers();
}

void Chief::Impl::ContinueServers() {
  phase = Phase::kConfiguring;
  Await(options.experiment.membership.ps_timeout);
  recovering = false;
  continuing = true;
  first_grant_done = !workers.empty();
  AppendLog(LayoutRecord{layout, generation, ServerAddresses()});
  had_layout = true;
  CommitNumber slowest = commit;
  for (ServerState& server : servers) {
    server.applied = std::max(server.applied, server.holding.applied);
    slowest = std::min(slowest, server.applied);
  }
  for (const Decision& decision : log.commits) {
    if (decision.version.commit > slowest) unapplied.push_back(decision);
  }
  Say(absl::StrCat("going on from ", ToString(version()), " with the servers that hold it"));
  for (ServerState& server : servers) ResumeServerSession(server);
}

// What a stop must not leave behind: commits that no checkpoint holds, but servers hold or may hold.
bool Chief::Impl::ServersHoldMore() const {
  if (switching || continuing || phase == Phase::kReading) return true;
  return recovering && !log.commits.empty() && log.commits.back().version.commit > options.resume->version.commit;
}

// All servers, survivors too, go back to the last checkpoint in a new generation, parameters and ledger together;
// whatever belonged to the old one is void. Workers live on.
void Chief::Impl::RollBack(const std::string& reason) {
  AbandonMove(reason);
  switching = false;
  if (stop_wanted || end_status == "stopped" || !failure.ok()) return EndStopped(reason);
  end_status.clear();
  end_reason.clear();
  for (const auto& [incarnation, worker] : workers) {
    if (worker.bound) Send(worker.session, Outcome{*worker.bound, false, {}});
    workers.Change(worker, [](WorkerState& w) {
      w.bound.reset();
      w.provisional.reset();
    });
  }
  undecided.Clear();
  dropped.clear();
  provisional_training.reset();
  unapplied.clear();
  measured.clear();
  restored_norms.reset();
  checkpoint.reset();
  checkpoint_due = false;
  // Who had been there and has not come back yet may do so until its lease ends.
  recovering = false;
  continuing = false;
  reading.reset();
  const std::int64_t trained = samples_trained;
  generation = log.NewGeneration(options.term);
  // A server may have lived through rollbacks that the log has lost.
  for (const ServerState& server : servers) {
    generation = std::max(generation, server.holding.decided.generation.Next());
    newest_layout = std::max(newest_layout, server.holding.layout);
  }
  options.resume = durable;
  if (durable) {
    if (absl::Status status = LoadState(*durable); !status.ok()) return Fail(std::move(status));
  } else {
    ForgetTraining();
  }
  for (const auto& [incarnation, worker] : workers) {
    if (worker.rank) totals.try_emplace(worker.name);
  }
  commit = durable ? durable->version.commit : CommitNumber(0);
  samples_rolled_back += trained - samples_trained;
  last_commit_at.reset();
  AppendLog(RollbackRecord{generation, durable ? durable->version : Version{}});
  actions.push_back(SyncLogAction{});
  for (ServerState& server : servers) server.configured = false;
  phase = Phase::kGathering;
  first_server_here = false;
  Await(options.experiment.membership.ps_timeout);
  replace_until = now + options.experiment.membership.ps_replacement_timeout;
  const std::int64_t again = trained - samples_trained;
  const std::string text =
      absl::StrCat(reason, ": back to ", durable ? CheckpointName(durable->version) : "the start", ", ",
                   again > 0 ? absl::StrCat(again, " samples are") : "nothing is", " trained again");
  Say(text, again > 0 ? LogLevel::kWarning : LogLevel::kInfo);
  NoteMember("rolled_back", text);
}

}  // namespace evenkeel
