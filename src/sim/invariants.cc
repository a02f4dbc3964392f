#include "sim/invariants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"

namespace evenkeel::sim {

std::uint64_t GradientValue(UpdateId update, std::int32_t bucket) {
  return MixKey(update.term.value(), update.incarnation.value(), update.sequence,
                static_cast<std::uint64_t>(bucket) + 1);
}

std::uint64_t InitialFingerprint(std::uint64_t seed) { return MixKey(seed, HashName("parameters")); }

std::uint64_t NextFingerprint(std::uint64_t fingerprint, const Decision& decision) {
  for (const UpdateId& update : UpdateIds(decision)) fingerprint = MixKey(fingerprint, GradientValue(update, -1));
  return MixKey(fingerprint, static_cast<std::uint64_t>(decision.samples), decision.hash);
}

Invariants::Invariants(const Experiment& experiment, std::int64_t samples, std::uint32_t servers)
    : experiment_(experiment), samples_(samples), servers_(servers), sealed_(servers) {}

void Invariants::Break(std::string what) {
  if (broken_.empty()) broken_ = std::move(what);
}

std::string Invariants::Name(std::uint32_t server) const { return absl::StrCat("ps:", server); }

std::uint64_t Invariants::FingerprintAt(CommitNumber commit) const {
  return commit == CommitNumber(0) ? InitialFingerprint(experiment_.train.seed)
                                   : history_[commit.value() - 1].fingerprint;
}

// --- the chief ------------------------------------------------------------------------------------------------------

void Invariants::ChiefStarts(const ChiefOptions& options) {
  if (options.term <= term_) {
    Break(absl::StrCat("terms go back: ", options.term.value(), " starts after ", term_.value()));
  }
  term_ = options.term;
  admitted_.clear();
  fenced_.clear();
  fenced_in_.clear();
  welcomed_.clear();
  decided_sets_.clear();
  grants_.clear();
  const LogHistory& log = options.history;
  for (const auto& [incarnation, member] : log.members) admitted_[incarnation] = Clock{member.clock};
  if (log.generation == Generation{}) return StartGeneration(log.NewGeneration(term_), std::nullopt);
  // Where the log ends. Its machine may have lost more; servers that live may still have it.
  generation_ = log.generation;
  line_term_ = LineTerm(generation_, term_);
  const auto& base = lines_.at({line_term_, generation_}).base;
  start_ = base ? base->second.commit : CommitNumber(0);
  CommitNumber last = start_;
  if (options.resume && options.resume->version.generation == generation_) last = options.resume->version.commit;
  if (!log.commits.empty()) last = std::max(last, log.commits.back().version.commit);
  RestoreHistory(HistoryUpTo(line_term_, Version{generation_, last}), last);
}

void Invariants::RestoreHistory(std::vector<Commit> history, CommitNumber last) {
  history_ = std::move(history);
  if (history_.size() != last.value()) {
    Break(absl::StrCat("commit ", last.value(), " is gone back to, but only ", history_.size(), " commits lead there"));
  }
  chain_hash_ = history_.empty() ? 0 : history_.back().decision.hash;
  spent_.clear();
  spent_samples_.clear();
  for (const Commit& commit : history_) {
    for (const CommittedUpdate& update : commit.decision.updates) Spend(update);
  }
}

// What lies behind the checkpoint is void, and so is every ticket.
void Invariants::StartGeneration(Generation generation, const std::optional<std::pair<Term, Version>>& base) {
  generation_ = generation;
  line_term_ = term_;
  start_ = base ? base->second.commit : CommitNumber(0);
  RestoreHistory(base ? HistoryUpTo(base->first, base->second) : std::vector<Commit>(), start_);
  lines_[{term_, generation_}] = Line{base, {}};
  grants_.clear();
}

Term Invariants::LineTerm(Generation generation, Term term) const {
  Term found;
  for (const auto& [key, line] : lines_) {
    if (key.second == generation && key.first <= term) found = key.first;
  }
  return found;
}

std::vector<Invariants::Commit> Invariants::HistoryUpTo(Term term, const Version& version) const {
  auto line = lines_.find({term, version.generation});
  if (line == lines_.end()) return {};
  std::vector<Commit> history;
  if (line->second.base) history = HistoryUpTo(line->second.base->first, line->second.base->second);
  for (const Commit& commit : line->second.commits) {
    if (commit.decision.version.commit <= version.commit) history.push_back(commit);
  }
  return history;
}

void Invariants::OnRollback(const RollbackRecord& record) {
  if (record.generation <= generation_) {
    return Break(absl::StrCat("generations go back: from ", generation_.value(), " to ", record.generation.value()));
  }
  std::optional<std::pair<Term, Version>> base;
  if (record.checkpoint != Version{}) {
    auto it = checkpoints_.find(record.checkpoint);
    if (it == checkpoints_.end()) {
      return Break(
          absl::StrCat("the job rolls back to ", CheckpointName(record.checkpoint), ", which was not written"));
    }
    base.emplace(LineTerm(record.checkpoint.generation, term_), record.checkpoint);
  }
  StartGeneration(record.generation, base);
}

void Invariants::ChiefSends(const Message& message) {
  const Envelope& envelope = message.envelope;
  if (envelope.term != term_ || envelope.generation != generation_) {
    Break(absl::StrCat("the chief of term ", term_.value(), " and generation ", generation_.value(), " sends term ",
                       envelope.term.value(), " and generation ", envelope.generation.value()));
  }
  if (const auto* ticket = std::get_if<Ticket>(&message.body)) {
    auto [it, fresh] = grants_.try_emplace(ticket->update, Grant{ticket->epoch, ticket->positions, false, {}});
    if (!fresh && (it->second.positions != ticket->positions || it->second.epoch != ticket->epoch)) {
      Break(absl::StrCat("ticket ", ToString(ticket->update), " changed from ", ToString(it->second.positions), " to ",
                         ToString(ticket->positions)));
    }
    if (ticket->positions.empty()) Break(absl::StrCat("ticket ", ToString(ticket->update), " covers nothing"));
    OnGrant(ticket->update, ticket->bound, ticket->version);
  } else if (const auto* bind = std::get_if<Bind>(&message.body)) {
    OnGrant(bind->update, true, bind->version);
  } else if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
    if (!welcome->servers.empty()) welcomed_.insert(welcome->incarnation);  // servers' own have none
  } else if (const auto* members = std::get_if<Members>(&message.body)) {
    for (Incarnation fenced : members->fenced) {
      welcomed_.erase(fenced);
      fenced_in_.try_emplace(fenced, members->epoch);
    }
    if (!members->full) return;
    std::erase_if(welcomed_, [&](Incarnation one) {
      return std::none_of(members->admitted.begin(), members->admitted.end(),
                          [one](const Member& member) { return member.incarnation == one; });
    });
  }
}

void Invariants::OnGrant(UpdateId update, bool bound, const Version& version) {
  auto grant = grants_.find(update);
  if (grant == grants_.end()) return Break(absl::StrCat("update ", ToString(update), " binds without a ticket"));
  if (update.term != term_) Break(absl::StrCat("update ", ToString(update), " is granted in term ", term_.value()));
  auto clock = admitted_.find(update.incarnation);
  if (clock == admitted_.end()) {
    return Break(absl::StrCat("update ", ToString(update), " is granted to an incarnation that is ",
                              fenced_.contains(update.incarnation) ? "fenced" : "not admitted"));
  }
  if (!bound || std::exchange(grant->second.bound, true)) return;
  grant->second.bound_at = version.commit;
  if (version.generation != generation_ || version.commit.value() > history_.size()) {
    Break(absl::StrCat("update ", ToString(update), " binds on ", ToString(version), ", which is not decided"));
  }
  const SyncConfig& sync = experiment_.train.sync;
  if (sync.mode != SyncConfig::Mode::kSsp) return;
  std::int64_t least = clock->second.commits;
  for (const auto& [incarnation, other] : admitted_) least = std::min(least, other.commits);
  if (clock->second.commits - least > sync.staleness) {
    Break(absl::StrCat("update ", ToString(update), " binds ", clock->second.commits - least,
                       " clocks ahead of the slowest; staleness is ", sync.staleness));
  }
}

void Invariants::LogAppended(const LogRecord& record) {
  if (const auto* admission = std::get_if<AdmissionRecord>(&record)) {
    std::int64_t least = 0;
    bool any = false;
    for (const auto& [incarnation, clock] : admitted_) {
      least = any ? std::min(least, clock.commits) : clock.commits;
      any = true;
    }
    if (fenced_.contains(admission->incarnation)) {
      Break(absl::StrCat("the fenced incarnation ", admission->incarnation.value(), " is admitted"));
    }
    if (!admitted_.try_emplace(admission->incarnation, Clock{least}).second) {
      Break(absl::StrCat("incarnation ", admission->incarnation.value(), " is admitted twice"));
    }
    if (static_cast<std::int64_t>(admitted_.size()) > experiment_.membership.workers_max) {
      Break(
          absl::StrCat(admitted_.size(), " workers are admitted; workers_max is ", experiment_.membership.workers_max));
    }
  } else if (const auto* fence = std::get_if<FenceRecord>(&record)) {
    if (admitted_.erase(fence->incarnation) == 0) {
      Break(absl::StrCat("incarnation ", fence->incarnation.value(), " is fenced, but was not a member"));
    }
    fenced_.insert(fence->incarnation);
    welcomed_.erase(fence->incarnation);
  } else if (const auto* commit = std::get_if<CommitRecord>(&record)) {
    OnCommit(*commit);
  } else if (const auto* rollback = std::get_if<RollbackRecord>(&record)) {
    OnRollback(*rollback);
  }
}

void Invariants::OnCommit(const CommitRecord& record) {
  const Decision& decision = record.decision;
  const std::string name = absl::StrCat("decision ", ToString(decision.version));
  if (IsAdopted(decision)) return;
  ++commits_;
  if (decision.version != Version{generation_, CommitNumber(history_.size() + 1)}) {
    return Break(absl::StrCat(name, " follows commit ", history_.size(), " of generation ", generation_.value()));
  }
  const auto members = static_cast<std::int64_t>(admitted_.size());
  if (members < experiment_.membership.workers_min) {
    Break(
        absl::StrCat(name, " commits with ", members, " workers; workers_min is ", experiment_.membership.workers_min));
  }
  if (!decided_sets_.insert({decision.set, decision.attempt}).second) Break(absl::StrCat(name, " decides a set twice"));
  for (std::uint32_t server = 0; server < servers_.size(); ++server) {
    if (!sealed_[server].contains({term_, decision.set, decision.attempt})) {
      Break(absl::StrCat(name, ": set ", decision.set.value(), ", attempt ", decision.attempt, " was not sealed by ",
                         Name(server)));
    }
  }
  std::int64_t samples = 0;
  for (const CommittedUpdate& update : decision.updates) {
    samples += TotalSize(update.positions);
    CheckUpdate(update, decision);
    Spend(update);
    if (auto clock = admitted_.find(update.update.incarnation); clock != admitted_.end()) ++clock->second.commits;
  }
  if (samples != decision.samples) {
    Break(absl::StrCat(name, " covers ", samples, " positions and divides by ", decision.samples));
  }
  if (samples > experiment_.train.global_batch_size) {
    Break(
        absl::StrCat(name, " covers ", samples, " samples; the global batch is ", experiment_.train.global_batch_size));
  }
  if (decision.previous_hash != chain_hash_ || decision.hash != HashDecision(decision)) {
    Break(absl::StrCat(name, " breaks the hash chain"));
  }
  chain_hash_ = decision.hash;
  const std::uint64_t before = FingerprintAt(CommitNumber(history_.size()));
  history_.push_back(Commit{decision, NextFingerprint(before, decision)});
  lines_[{line_term_, generation_}].commits.push_back(history_.back());
  CheckSpread();
}

// A restarted chief writes again what its log has lost; or it decides anew, if no server has it.
bool Invariants::IsAdopted(const Decision& decision) {
  std::vector<Commit>& line = lines_[{line_term_, generation_}].commits;
  const std::size_t at = history_.size() - start_.value();
  if (at >= line.size()) return false;
  if (line[at].decision == decision) {
    history_.push_back(line[at]);
    chain_hash_ = decision.hash;
    for (const CommittedUpdate& update : decision.updates) {
      Spend(update);
      if (auto clock = admitted_.find(update.update.incarnation); clock != admitted_.end()) ++clock->second.commits;
    }
    return true;
  }
  for (std::uint32_t server = 0; server < servers_.size(); ++server) {
    if (!IsCurrent(servers_[server]) || servers_[server].version < line[at].decision.version) continue;
    Break(absl::StrCat("decision ", ToString(decision.version), " is made anew, but ", Name(server),
                       " has applied another one"));
  }
  line.resize(at);
  return false;
}

void Invariants::CheckUpdate(const CommittedUpdate& update, const Decision& decision) {
  const std::string name = absl::StrCat("update ", ToString(update.update), " in ", ToString(decision.version));
  if (!committed_.insert(update.update).second) Break(absl::StrCat(name, " commits a second time"));
  if (update.update.term != term_) Break(absl::StrCat(name, " is of another term"));
  auto grant = grants_.find(update.update);
  if (grant == grants_.end() || !grant->second.bound) return Break(absl::StrCat(name, " was never bound"));
  if (grant->second.epoch != update.epoch || grant->second.positions != update.positions) {
    Break(absl::StrCat(name, " covers ", ToString(update.positions), " of epoch ", update.epoch.value(),
                       "; its ticket was for ", ToString(grant->second.positions), " of epoch ",
                       grant->second.epoch.value()));
  }
  for (const Version& version : update.computed_on) {
    if (version.generation != generation_ || version.commit < grant->second.bound_at ||
        version.commit >= decision.version.commit) {
      Break(absl::StrCat(name, " was computed on ", ToString(version), ", bound at ", grant->second.bound_at.value()));
    }
  }
}

void Invariants::Spend(const CommittedUpdate& update) {
  const std::size_t epoch = update.epoch.value();
  if (static_cast<std::int64_t>(epoch) >= experiment_.train.epochs) {
    return Break(
        absl::StrCat("update ", ToString(update.update), " is of epoch ", epoch, " of ", experiment_.train.epochs));
  }
  if (spent_.size() <= epoch) {
    spent_.resize(epoch + 1, std::vector<bool>(static_cast<std::size_t>(samples_)));
    spent_samples_.resize(epoch + 1);
  }
  for (const PositionRange& range : update.positions) {
    for (std::int64_t at = range.begin; at < range.end; ++at) {
      if (at < 0 || at >= samples_ || spent_[epoch][static_cast<std::size_t>(at)]) {
        return Break(absl::StrCat("position ", at, " of epoch ", epoch,
                                  " is committed twice or does not exist: update ", ToString(update.update)));
      }
      spent_[epoch][static_cast<std::size_t>(at)] = true;
      ++spent_samples_[epoch];
    }
  }
}

void Invariants::CheckpointWritten(const Manifest& manifest, const std::vector<std::uint64_t>& part_fingerprints) {
  const std::string name = absl::StrCat("checkpoint ", CheckpointName(manifest.version));
  // One that was under way when the job rolled back holds a line that ended; it is whole all the same.
  const std::vector<Commit> history =
      HistoryUpTo(LineTerm(manifest.version.generation, manifest.term), manifest.version);
  if (history.size() != manifest.version.commit.value()) {
    return Break(absl::StrCat(name, " has no history: ", history.size(), " commits"));
  }
  const std::uint64_t expected =
      history.empty() ? InitialFingerprint(experiment_.train.seed) : history.back().fingerprint;
  for (std::uint64_t fingerprint : part_fingerprints) {
    if (fingerprint != expected) Break(absl::StrCat(name, " holds other parameters than the log says"));
  }
  checkpoints_.insert(manifest.version);
  std::int64_t samples = 0;
  for (const Commit& commit : history) samples += commit.decision.samples;
  if (samples != manifest.samples_trained) {
    Break(absl::StrCat(name, " counts ", manifest.samples_trained, " samples, the log ", samples));
  }
}

void Invariants::JobEnded(const EndAction& end, const std::map<Version, Manifest>& manifests) {
  if (end.finished_before) return;
  // A disk that refuses the last checkpoint fails the job, and rightly so.
  if (absl::IsInternal(end.status) && !absl::StrContains(end.status.message(), kDiskError)) {
    Break(absl::StrCat("the chief failed: ", end.status.message()));
  }
  if (!end.status.ok() || end.summary.status != "finished") return;
  const TrainConfig& train = experiment_.train;
  const bool by_commits = train.max_commits > 0 && static_cast<std::int64_t>(history_.size()) == train.max_commits;
  for (std::int64_t epoch = 0; epoch < train.epochs && !by_commits; ++epoch) {
    const auto index = static_cast<std::size_t>(epoch);
    const std::int64_t spent = index < spent_samples_.size() ? spent_samples_[index] : 0;
    if (spent != samples_) {
      Break(absl::StrCat("the job is finished, but epoch ", epoch, " has ", spent, " of ", samples_, " samples"));
    }
    if (index >= end.summary.samples_per_epoch.size() || end.summary.samples_per_epoch[index] != spent) {
      Break(absl::StrCat("the summary does not say ", spent, " samples for epoch ", epoch));
    }
  }
  const Version last{generation_, CommitNumber(history_.size())};
  auto manifest = manifests.find(last);
  if (end.final_checkpoint != last || manifest == manifests.end() || !manifest->second.final) {
    Break(absl::StrCat("the job is finished, but ", ToString(last), " is no final checkpoint"));
  }
}

void Invariants::WorkerCalledStale(std::uint32_t server, Term term, Incarnation incarnation) {
  if (term != term_ || !welcomed_.contains(incarnation) || fenced_.contains(incarnation)) return;
  Break(absl::StrCat(Name(server), " calls incarnation ", incarnation.value(),
                     " stale, which the chief welcomed and never fenced"));
}

// --- servers --------------------------------------------------------------------------------------------------------

void Invariants::ServerStarts(std::uint32_t server) { servers_[server] = Server{}; }

void Invariants::ServerSends(std::uint32_t server, const Message& message) {
  Server& state = servers_[server];
  const Envelope& envelope = message.envelope;
  if (envelope.term < state.term || envelope.generation < state.generation) {
    Break(absl::StrCat(Name(server), " goes back from term ", state.term.value(), ", generation ",
                       state.generation.value(), " to ", envelope.term.value(), ", ", envelope.generation.value()));
  }
  state.term = envelope.term;
  state.generation = envelope.generation;
  if (const auto* sealed = std::get_if<Sealed>(&message.body)) {
    sealed_[server].insert({envelope.term, sealed->set, sealed->attempt});
  } else if (const auto* ack = std::get_if<MembersAck>(&message.body)) {
    state.acknowledged = std::max(state.acknowledged, std::pair(envelope.term, ack->epoch));
  }
}

void Invariants::ServerTakes(std::uint32_t server, UpdateId update) {
  const auto fence = fenced_in_.find(update.incarnation);
  if (fence == fenced_in_.end() || servers_[server].acknowledged < std::pair(term_, fence->second)) return;
  Break(absl::StrCat(Name(server), " takes a part of update ", ToString(update),
                     ", whose worker it has acknowledged to be fenced"));
}

void Invariants::ServerHolds(std::uint32_t server, Term term, Version version, std::uint64_t fingerprint) {
  Server& state = servers_[server];
  if (state.holds && std::pair(term, version) < std::pair(state.held_in, state.version)) {
    Break(absl::StrCat(Name(server), " goes back from ", ToString(state.version), " to ", ToString(version)));
  }
  state.held_in = term;
  state.version = version;
  state.fingerprint = fingerprint;
  state.holds = true;
  if (!IsCurrent(state)) return;  // of a chief that has died meanwhile
  if (version.commit != start_ || fingerprint != FingerprintAt(start_)) {
    Break(absl::StrCat(Name(server), " starts from ", ToString(version), " with other parameters than the job's"));
  }
}

void Invariants::ServerApplied(std::uint32_t server, const Decision& decision, std::uint64_t fingerprint) {
  Server& state = servers_[server];
  const std::string name = absl::StrCat(Name(server), " applies ", ToString(decision.version));
  if (decision.version != Version{state.version.generation, state.version.commit.Next()}) {
    return Break(absl::StrCat(name, " after ", ToString(state.version)));
  }
  state.version = decision.version;
  state.fingerprint = fingerprint;
  if (!IsCurrent(state)) return;
  // Where a crash has taken the log's end, the servers may be ahead of it; the next chief has to adopt what they have.
  const std::vector<Commit>& line = lines_.at({line_term_, generation_}).commits;
  const std::size_t index = decision.version.commit.value() - start_.value() - 1;
  if (index >= line.size() || line[index].decision != decision) {
    return Break(absl::StrCat(name, ", which the log does not have"));
  }
  if (fingerprint != line[index].fingerprint) {
    Break(absl::StrCat(name, ", and its parameters are not what the log makes of them: an update is there twice, ",
                       "not at all, or out of order"));
  }
  CheckSpread();
}

void Invariants::CheckSpread() {
  for (std::uint32_t server = 0; server < servers_.size(); ++server) {
    const Server& state = servers_[server];
    if (!IsCurrent(state)) continue;
    if (state.version.commit.value() + kMaxVersionsApart < history_.size()) {
      Break(absl::StrCat(Name(server), " is ", history_.size() - state.version.commit.value(),
                         " commits behind; at most ", kMaxVersionsApart, " may be in flight"));
    }
  }
}

void Invariants::ServerEnded(std::uint32_t server, const absl::Status& status) {
  if (absl::IsInternal(status) || absl::IsInvalidArgument(status)) {
    Break(absl::StrCat(Name(server), " stops: ", status.message()));
  }
}

}  // namespace evenkeel::sim
