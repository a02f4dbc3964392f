#include "sim/invariants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"

namespace evenkeel::sim {
namespace {

// Of those that were written before, a job goes back to the last or the last but one; more rollbacks may come before a
// chief hears that one is there.
constexpr std::size_t kCheckpointsKept = 16;

}  // namespace

std::uint64_t GradientValue(UpdateId update, std::int32_t bucket) {
  return MixKey(update.term.value(), update.incarnation.value(), update.sequence,
                static_cast<std::uint64_t>(bucket) + 1);
}

std::uint64_t InitialFingerprint(std::uint64_t seed) { return MixKey(seed, HashName("parameters")); }

std::uint64_t NextFingerprint(std::uint64_t fingerprint, const Decision& decision) {
  for (const UpdateId& update : UpdateIds(decision)) fingerprint = MixKey(fingerprint, GradientValue(update, -1));
  return MixKey(fingerprint, static_cast<std::uint64_t>(decision.samples), decision.hash);
}

Invariants::Invariants(const Experiment& experiment, std::int64_t samples)
    : experiment_(experiment), samples_(samples), spent_(samples) {}

void Invariants::Break(std::string what) {
  if (broken_.empty()) broken_ = std::move(what);
}

std::string Invariants::Name(std::uint32_t server) const { return absl::StrCat("ps:", server); }

// --- the chief ------------------------------------------------------------------------------------------------------

void Invariants::ChiefStarts(const ChiefOptions& options) {
  if (options.term <= term_) {
    Break(absl::StrCat("terms go back: ", options.term.value(), " starts after ", term_.value()));
  }
  term_ = options.term;
  committed_.clear();
  for (auto& sealed : sealed_) {
    std::erase_if(sealed, [this](const auto& entry) { return std::get<Term>(entry) < term_; });
  }
  admitted_.clear();
  fenced_.clear();
  fenced_in_.clear();
  welcomed_.clear();
  decided_sets_.Clear();
  grants_.clear();
  const LogHistory& log = options.history;
  layout_.reset();
  for (const auto& [incarnation, member] : log.members) {
    admitted_[incarnation] = Clock{member.clock, member.admission.name};
  }
  if (log.generation == Generation{}) return StartGeneration(log.NewGeneration(term_), Nothing());
  // Where the log ends. Its machine may have lost more; servers that live may still have it.
  generation_ = log.generation;
  if (log.layout) layout_ = LayoutOf(*log.layout);
  line_term_ = LineTerm(generation_, term_);
  // Whoever wrote for the other lines is dead.
  std::erase_if(lines_, [this](const auto& entry) { return entry.first != std::pair(line_term_, generation_); });
  if (lines_.empty())
    return Break(absl::StrCat("the log ends in generation ", generation_.value(), ", which never began"));
  start_ = line().start;
  CommitNumber last = start_->commit;
  if (options.resume && options.resume->version.generation == generation_) last = options.resume->version.commit;
  if (!log.commits.empty()) last = std::max(last, log.commits.back().version.commit);
  const BasePtr reached = Reach(line(), last);
  if (reached == nullptr)
    return Break(absl::StrCat("the log ends at commit ", last.value(), ", which was not decided"));
  GoOnFrom(*reached);
}

void Invariants::GoOnFrom(const Base& base) {
  decided_ = base.commit.value();
  chain_hash_ = base.hash;
  fingerprint_ = base.fingerprint;
  samples_trained_ = base.samples;
  spent_ = base.spent;
}

Invariants::BasePtr Invariants::Nothing() const {
  return std::make_shared<const Base>(
      Base{CommitNumber(0), 0, InitialFingerprint(experiment_.train.seed), 0, SpentSamples(samples_)});
}

Term Invariants::LineTerm(Generation generation, Term term) const {
  Term found;
  for (const auto& [key, line] : lines_) {
    if (key.second == generation && key.first <= term) found = key.first;
  }
  return found;
}

// What lies behind the checkpoint is void, and so is every ticket.
void Invariants::StartGeneration(Generation generation, BasePtr base) {
  generation_ = generation;
  layout_.reset();
  line_term_ = term_;
  start_ = base;
  GoOnFrom(*base);
  lines_[{term_, generation_}] = Line{base, base, {}, nullptr};
  grants_.clear();
}

Invariants::BasePtr Invariants::Reach(const Line& line, CommitNumber commit) const {
  if (commit < line.base->commit || commit.value() > line.size()) return nullptr;
  Base reached = *line.base;
  while (reached.commit < commit) {
    reached.commit = reached.commit.Next();
    const Commit& next = line.At(reached.commit);
    reached.hash = next.decision.hash;
    reached.fingerprint = next.fingerprint;
    reached.samples += next.decision.samples;
    for (const CommittedUpdate& update : next.decision.updates)
      (void)reached.spent.Spend(update.epoch, update.positions);
  }
  return std::make_shared<const Base>(std::move(reached));
}

void Invariants::OnRollback(const RollbackRecord& record) {
  if (record.generation <= generation_) {
    return Break(absl::StrCat("generations go back: from ", generation_.value(), " to ", record.generation.value()));
  }
  BasePtr base = Nothing();
  if (record.checkpoint != Version{}) {
    auto it = checkpoints_.find(record.checkpoint);
    if (it == checkpoints_.end()) {
      return Break(absl::StrCat("the job rolls back to ", CheckpointName(record.checkpoint),
                                ", which was not written, or ", kCheckpointsKept, " others since"));
    }
    base = it->second;
  }
  StartGeneration(record.generation, std::move(base));
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
  } else if (const auto* drop = std::get_if<Drop>(&message.body)) {
    for (const UpdateId& update : drop->updates) grants_.erase(update);  // it can never commit, and holds nobody up
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

std::int64_t Invariants::LeastClock(const Clock& from) const {
  std::int64_t least = from.commits;
  for (const auto& [incarnation, other] : admitted_) {
    bool counts = !other.leaving;
    for (auto grant = grants_.lower_bound(UpdateId{term_, incarnation, 0});
         !counts && grant != grants_.end() && grant->first.incarnation == incarnation; ++grant) {
      counts = grant->second.bound;
    }
    if (counts) least = std::min(least, other.commits);
  }
  return least;
}

void Invariants::ToldToLeave(const std::string& name) {
  for (auto& [incarnation, member] : admitted_) {
    if (member.name == name) member.leaving = true;
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
  // A worker has one bound update; what it was granted before is decided, dropped, or was only to read ahead.
  grants_.erase(grants_.lower_bound(UpdateId{update.term, update.incarnation, 0}), grant);
  grant->second.bound_at = version.commit;
  if (version.generation != generation_ || version.commit.value() > decided_) {
    Break(absl::StrCat("update ", ToString(update), " binds on ", ToString(version), ", which is not decided"));
  }
  const SyncConfig& sync = experiment_.train.sync;
  if (sync.mode != SyncConfig::Mode::kSsp) return;
  const std::int64_t least = LeastClock(clock->second);
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
    if (!admitted_.try_emplace(admission->incarnation, Clock{least, admission->name}).second) {
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
    for (auto it = grants_.lower_bound(UpdateId{term_, fence->incarnation, 0});
         it != grants_.end() && it->first.incarnation == fence->incarnation;) {
      it = it->second.bound ? std::next(it) : grants_.erase(it);
    }
  } else if (const auto* layout = std::get_if<LayoutRecord>(&record)) {
    OnLayout(*layout);
  } else if (const auto* commit = std::get_if<CommitRecord>(&record)) {
    OnCommit(*commit);
  } else if (const auto* rollback = std::get_if<RollbackRecord>(&record)) {
    OnRollback(*rollback);
  }
}

Invariants::Layout Invariants::LayoutOf(const LayoutRecord& record) {
  Layout layout{record.layout, {}, {}, std::nullopt};
  for (const ServerAddress& server : record.servers) {
    std::uint32_t number = 0;
    (void)absl::SimpleAtoi(server.name.substr(server.name.find(':') + 1), &number);
    layout.servers.push_back(number);
    layout.incarnations.push_back(server.incarnation);
  }
  return layout;
}

void Invariants::OnLayout(const LayoutRecord& record) {
  const std::string name = absl::StrCat("layout ", record.layout.value(), " of generation ", record.generation.value());
  if (record.generation != generation_) {
    return Break(absl::StrCat(name, " is logged in generation ", generation_.value()));
  }
  Layout layout = LayoutOf(record);
  for (std::size_t i = 0; i < layout.servers.size(); ++i) {
    (void)StateOf(layout.servers[i]);
    if (std::count(layout.servers.begin(), layout.servers.end(), layout.servers[i]) != 1) {
      Break(absl::StrCat(name, " has ", Name(layout.servers[i]), " twice"));
    }
  }
  if (layout.servers.empty()) return Break(absl::StrCat(name, " has no server"));
  if (layout_ && layout.number < layout_->number) {
    return Break(absl::StrCat("layouts go back: from ", layout_->number.value(), " to ", name));
  }
  if (layout_ && layout.number == layout_->number && layout.servers != layout_->servers) {
    return Break(absl::StrCat(name, " is logged twice, with other servers"));
  }
  if (layout_ && layout.number > layout_->number) ++moves_;
  layout.since = CommitNumber(decided_);
  layout_ = std::move(layout);
}

void Invariants::OnCommit(const CommitRecord& record) {
  const Decision& decision = record.decision;
  const std::string name = absl::StrCat("decision ", ToString(decision.version));
  if (IsAdopted(decision)) return;
  ++commits_;
  if (decision.version != Version{generation_, CommitNumber(decided_ + 1)}) {
    return Break(absl::StrCat(name, " follows commit ", decided_, " of generation ", generation_.value()));
  }
  const auto members = static_cast<std::int64_t>(admitted_.size());
  if (members < experiment_.membership.workers_min) {
    Break(
        absl::StrCat(name, " commits with ", members, " workers; workers_min is ", experiment_.membership.workers_min));
  }
  if (!decided_sets_.Insert(decision.set.value())) Break(absl::StrCat(name, " decides a set twice"));
  if (!layout_) return Break(absl::StrCat(name, " is made before there is a layout"));
  for (std::uint32_t server : layout_->servers) {
    if (!sealed_[server].contains({term_, decision.set, decision.attempt})) {
      Break(absl::StrCat(name, ": set ", decision.set.value(), ", attempt ", decision.attempt, " was not sealed by ",
                         Name(server)));
    }
    sealed_[server].erase(sealed_[server].lower_bound({term_, decision.set, 0}),
                          sealed_[server].lower_bound({term_, decision.set.Next(), 0}));
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
  const auto& following = experiment_.batching.noise_scale;
  const std::int64_t most = following ? following->max : experiment_.train.global_batch_size;
  if (samples > most) Break(absl::StrCat(name, " covers ", samples, " samples; the global batch is at most ", most));
  // In bsp it is all of it, but where an update was lost, which is a further attempt, and at an epoch's end.
  const SyncConfig& sync = experiment_.train.sync;
  const bool exact = sync.mode == SyncConfig::Mode::kBsp && sync.backup_workers == 0 && !following;
  if (exact && decision.attempt == 0 && samples < most && !decision.updates.empty() &&
      spent_.Count(static_cast<std::int64_t>(decision.updates.front().epoch.value())) < samples_) {
    Break(absl::StrCat(name, " covers ", samples, " samples although none was lost; the global batch is ", most));
  }
  if (decision.previous_hash != chain_hash_ || decision.hash != HashDecision(decision)) {
    Break(absl::StrCat(name, " breaks the hash chain"));
  }
  chain_hash_ = decision.hash;
  samples_trained_ += decision.samples;
  fingerprint_ = NextFingerprint(fingerprint_, decision);
  ++decided_;
  line().commits.push_back(Commit{decision, fingerprint_});
  CheckSpread();
}

// A restarted chief writes again what its log has lost; or it decides anew, if no server has it.
bool Invariants::IsAdopted(const Decision& decision) {
  if (decided_ >= line().size()) return false;
  const Commit& known = line().At(CommitNumber(decided_ + 1));
  if (known.decision == decision) {
    for (const CommittedUpdate& update : decision.updates) {
      Spend(update);
      if (auto clock = admitted_.find(update.update.incarnation); clock != admitted_.end()) ++clock->second.commits;
    }
    chain_hash_ = decision.hash;
    samples_trained_ += decision.samples;
    fingerprint_ = known.fingerprint;
    ++decided_;
    return true;
  }
  for (std::uint32_t server = 0; server < servers_.size(); ++server) {
    if (!layout_ || !layout_->Has(server)) continue;
    if (!IsCurrent(server) || servers_[server].version < known.decision.version) continue;
    Break(absl::StrCat("decision ", ToString(decision.version), " is made anew, but ", Name(server),
                       " has applied another one"));
  }
  line().commits.resize(decided_ - line().base->commit.value());
  return false;
}

void Invariants::CheckUpdate(const CommittedUpdate& update, const Decision& decision) {
  const std::string name = absl::StrCat("update ", ToString(update.update), " in ", ToString(decision.version));
  if (update.update.term != term_) Break(absl::StrCat(name, " is of another term"));
  // A worker stages one update after another.
  auto [newest, first] = committed_.try_emplace(update.update.incarnation, update.update.sequence);
  if (!first && newest->second >= update.update.sequence) {
    Break(absl::StrCat(name, " commits a second time, or after update ", newest->second, " of the same worker"));
  }
  newest->second = update.update.sequence;
  auto grant = grants_.find(update.update);
  if (grant == grants_.end() || !grant->second.bound) return Break(absl::StrCat(name, " was never bound"));
  if (grant->second.epoch != update.epoch || grant->second.positions != update.positions) {
    Break(absl::StrCat(name, " covers ", ToString(update.positions), " of epoch ", update.epoch.value(),
                       "; its ticket was for ", ToString(grant->second.positions), " of epoch ",
                       grant->second.epoch.value()));
  }
  if (update.computed_on.size() != layout_->servers.size()) {
    Break(absl::StrCat(name, " says what it was computed on at ", update.computed_on.size(), " servers; layout ",
                       layout_->number.value(), " has ", layout_->servers.size()));
  }
  for (const Version& version : update.computed_on) {
    if (version.generation != generation_ || version.commit < grant->second.bound_at ||
        version.commit >= decision.version.commit) {
      Break(absl::StrCat(name, " was computed on ", ToString(version), ", bound at ", grant->second.bound_at.value()));
    }
  }
  grants_.erase(grant);
}

void Invariants::Spend(const CommittedUpdate& update) {
  const std::size_t epoch = update.epoch.value();
  if (static_cast<std::int64_t>(epoch) >= experiment_.train.epochs) {
    return Break(
        absl::StrCat("update ", ToString(update.update), " is of epoch ", epoch, " of ", experiment_.train.epochs));
  }
  if (const std::optional<std::int64_t> at = spent_.Spend(update.epoch, update.positions)) {
    Break(absl::StrCat("position ", *at, " of epoch ", epoch, " is committed twice or does not exist: update ",
                       ToString(update.update)));
  }
}

void Invariants::CheckpointWritten(const Manifest& manifest, const std::vector<Part>& parts) {
  const std::string name = absl::StrCat("checkpoint ", CheckpointName(manifest.version));
  // One that was under way when the job rolled back holds a line that ended; it is whole all the same.
  const Generation generation = manifest.version.generation;
  const auto line = lines_.find({LineTerm(generation, manifest.term), generation});
  BasePtr base = line == lines_.end() ? nullptr : Reach(line->second, manifest.version.commit);
  if (base == nullptr) return Break(absl::StrCat(name, " has no history"));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].fingerprint != base->fingerprint) {
      Break(absl::StrCat(name, " holds other parameters than the log says"));
    }
    if (parts[i].place.value() != i || parts[i].servers != parts.size()) {
      Break(absl::StrCat(name, ": part ", i, " of ", parts.size(), " is cut as place ", parts[i].place.value(), " of ",
                         parts[i].servers));
    }
  }
  if (base->samples != manifest.samples_trained) {
    Break(absl::StrCat(name, " counts ", manifest.samples_trained, " samples, the log ", base->samples));
  }
  checkpoints_[manifest.version] = base;
  while (checkpoints_.size() > kCheckpointsKept) checkpoints_.erase(checkpoints_.begin());
  if (BasePtr former = std::exchange(line->second.last_checkpoint, std::move(base))) {
    std::deque<Commit>& commits = line->second.commits;
    const std::uint64_t over = former->commit.value() - line->second.base->commit.value();
    commits.erase(commits.begin(), commits.begin() + static_cast<std::ptrdiff_t>(over));
    line->second.base = std::move(former);
  }
}

void Invariants::JobEnded(const EndAction& end, const std::map<Version, Manifest>& manifests) {
  if (end.finished_before) return;
  // A disk that refuses the last checkpoint fails the job, and rightly so; as does a server that is lost before it.
  const absl::string_view why = end.status.message();
  const bool rightly = absl::StrContains(why, kDiskError) || absl::StrContains(why, "before the last checkpoint was");
  if (absl::IsInternal(end.status) && !rightly) {
    Break(absl::StrCat("the chief failed: ", end.status.message()));
  }
  if (!end.status.ok() || end.summary.status != "finished") return;
  const TrainConfig& train = experiment_.train;
  const bool by_commits = train.max_commits > 0 && static_cast<std::int64_t>(decided_) == train.max_commits;
  for (std::int64_t epoch = 0; epoch < train.epochs && !by_commits; ++epoch) {
    const auto index = static_cast<std::size_t>(epoch);
    const std::int64_t spent = spent_.Count(epoch);
    if (spent != samples_) {
      Break(absl::StrCat("the job is finished, but epoch ", epoch, " has ", spent, " of ", samples_, " samples"));
    }
    if (index >= end.summary.samples_per_epoch.size() || end.summary.samples_per_epoch[index] != spent) {
      Break(absl::StrCat("the summary does not say ", spent, " samples for epoch ", epoch));
    }
  }
  const Version last{generation_, CommitNumber(decided_)};
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

}  // namespace evenkeel::sim
