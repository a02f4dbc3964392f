// What must hold whatever happens, checked after each event from what chief, log and servers show to the outside. It
// keeps its own ledger, clocks and history, from the commit log alone, and shares no code with the chief's.
//
// Threading: none. The first broken invariant is kept; nothing after it counts.
// Limits:    memory is what a job may still come back to, the commits since the last checkpoint but one of each line,
//            and some bytes a member that ever was.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "evenkeel/chief/chief.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/ranges.h"
#include "evenkeel/protocol/log_record.h"
#include "sim/number_set.h"
#include "sim/spent_samples.h"

namespace evenkeel::sim {

constexpr std::uint64_t kMaxVersionsApart = 64;
// What a disk says that fails because it was told to.
constexpr char kDiskError[] = "no space is left";

// What a worker computes for an update's bucket. Whoever computes it gets the same.
std::uint64_t GradientValue(UpdateId update, std::int32_t bucket);
// Stands for all parameters of a version.
std::uint64_t InitialFingerprint(std::uint64_t seed);
std::uint64_t NextFingerprint(std::uint64_t fingerprint, const Decision& decision);

class Invariants {
 public:
  Invariants(const Experiment& experiment, std::int64_t samples);

  // --- the chief
  void ChiefStarts(const ChiefOptions& options);
  void ChiefSends(const Message& message);
  void LogAppended(const LogRecord& record);
  // The chief has agreed to let a member go.
  void ToldToLeave(const std::string& name);
  void JobEnded(const EndAction& end, const std::map<Version, Manifest>& manifests);
  // What a part of a checkpoint stands for.
  struct Part {
    Version version;
    std::uint64_t fingerprint = 0;
    ServerIndex place;
    std::uint32_t servers = 1;
  };
  void CheckpointWritten(const Manifest& manifest, const std::vector<Part>& parts);

  // --- servers, by the number in their name
  // What a server's memory stands for once it has taken a place.
  struct Held {
    Term term;
    Generation generation;  // of the place; the version's may be a former one's, of a place given up meanwhile
    LayoutNumber layout;
    ServerIndex place;
    std::uint32_t servers = 1;
    Version version;
    std::uint64_t fingerprint = 0;
  };
  void ServerStarts(std::uint32_t server);
  void ServerSends(std::uint32_t server, const Message& message);
  // Initialised or restored, for the chief of a term.
  void ServerHolds(std::uint32_t server, const Held& held);
  // Switched to a layout, with what it fetched from the servers of the one before.
  void ServerAdopts(std::uint32_t server, const Held& held);
  // Of a version in the line that a chief of this term goes on with; nullopt: not known any more.
  std::optional<std::uint64_t> FingerprintAt(Term term, const Version& version) const;
  // Let go by the chief of a term.
  void ServerReleased(std::uint32_t server, Term term, Incarnation incarnation);
  void ServerTakes(std::uint32_t server, UpdateId update);  // a part of it, from its worker
  void ServerApplied(std::uint32_t server, const Decision& decision, std::uint64_t fingerprint);
  void ServerEnded(std::uint32_t server, const absl::Status& status);

  // A server tells a worker that its incarnation is no more.
  void WorkerCalledStale(std::uint32_t server, Term term, Incarnation incarnation);

  void Break(std::string what);
  bool broken() const { return !broken_.empty(); }
  const std::string& what() const { return broken_; }
  std::int64_t commits() const { return commits_; }
  std::int64_t moves() const { return moves_; }
  std::int64_t fenced() const { return static_cast<std::int64_t>(fenced_.size()); }
  std::int64_t surviving_samples() const { return samples_trained_; }

 private:
  struct Commit {
    Decision decision;
    std::uint64_t fingerprint = 0;  // after it
  };
  // All that a history up to a commit comes to.
  struct Base {
    CommitNumber commit;
    std::uint64_t hash = 0;  // of its last decision
    std::uint64_t fingerprint = 0;
    std::int64_t samples = 0;
    SpentSamples spent;
  };
  using BasePtr = std::shared_ptr<const Base>;  // shared by a checkpoint and the lines that start from it
  // The commits of a generation behind a base. What lies before the last checkpoint but one goes into the base: a
  // rollback that comes while the last one's manifest is on its way to the chief still needs that one.
  struct Line {
    BasePtr start;  // what the servers began with
    BasePtr base;
    std::deque<Commit> commits;
    BasePtr last_checkpoint;
    std::uint64_t size() const { return base->commit.value() + commits.size(); }
    // Requires base->commit < commit <= size().
    const Commit& At(CommitNumber commit) const { return commits[commit.value() - base->commit.value() - 1]; }
  };
  struct Clock {
    std::int64_t commits = 0;
    std::string name;
    bool leaving = false;  // it may end what it holds
  };
  struct Server {
    Term term;
    Generation generation;
    Term held_in;  // the term whose place it has
    Version version;
    std::uint64_t fingerprint = 0;
    bool holds = false;
    std::pair<Term, MembershipEpoch> acknowledged;  // the newest list of members
  };
  // Who shares the parameters, as the log says it.
  struct Layout {
    LayoutNumber number;
    std::vector<std::uint32_t> servers;
    std::vector<Incarnation> incarnations;
    std::optional<CommitNumber> since;  // known where this term's chief has begun it
    bool Has(std::uint32_t server) const { return std::find(servers.begin(), servers.end(), server) != servers.end(); }
  };
  struct Grant {
    Epoch epoch;
    RangeList positions;
    bool bound = false;
    CommitNumber bound_at;
  };

  void GoOnFrom(const Base& base);
  void StartGeneration(Generation generation, BasePtr base);
  // The term in which the generation began, of those up to `term`; another one may have begun it again after a crash.
  Term LineTerm(Generation generation, Term term) const;
  BasePtr Nothing() const;  // the base of a job's start
  // Null when the line has no such commit.
  BasePtr Reach(const Line& line, CommitNumber commit) const;
  bool IsCurrent(const Server& server) const {
    return server.holds && server.held_in == line_term_ && server.version.generation == generation_;
  }
  bool IsCurrent(std::uint32_t server) const { return IsCurrent(servers_[server]); }
  static Layout LayoutOf(const LayoutRecord& record);
  void OnLayout(const LayoutRecord& record);
  // A server has its place in the layout that rules.
  void CheckPlace(std::uint32_t server, const Held& held);
  Server& StateOf(std::uint32_t server);
  void OnRollback(const RollbackRecord& record);
  void OnCommit(const CommitRecord& record);
  bool IsAdopted(const Decision& decision);
  void CheckUpdate(const CommittedUpdate& update, const Decision& decision);
  // The clock that the slowest has who holds or may hold a ticket; that of `from`, where nobody is behind it.
  std::int64_t LeastClock(const Clock& from) const;
  void OnGrant(UpdateId update, bool bound, const Version& version);
  void Spend(const CommittedUpdate& update);
  void CheckSpread();
  Line& line() { return lines_.at({line_term_, generation_}); }
  std::string Name(std::uint32_t server) const;

  const Experiment& experiment_;
  const std::int64_t samples_;
  std::string broken_;

  // The history that survives.
  Term term_;
  Term line_term_;  // in which this generation began
  Generation generation_;
  BasePtr start_;              // of this generation
  std::uint64_t decided_ = 0;  // commits
  std::uint64_t chain_hash_ = 0;
  std::uint64_t fingerprint_ = 0;  // of the last one
  std::int64_t samples_trained_ = 0;
  SpentSamples spent_;
  std::map<std::pair<Term, Generation>, Line> lines_;  // that this term has begun, and the one that it found
  std::map<Version, BasePtr> checkpoints_;             // the newest kCheckpointsKept

  // This term's.
  std::map<Incarnation, Clock> admitted_;
  std::set<Incarnation> fenced_;
  std::map<Incarnation, MembershipEpoch> fenced_in_;  // as servers were told
  std::set<Incarnation> welcomed_;                    // workers that the chief has ended in no way
  std::map<UpdateId, Grant> grants_;                  // that may still commit
  NumberSet decided_sets_;
  std::map<Incarnation, std::uint64_t> committed_;  // the newest sequence

  std::optional<Layout> layout_;  // of this generation; none before its first record
  std::vector<Server> servers_;   // all that ever were
  // (term, set, attempt) that each server reported sealed and that is not decided.
  std::vector<std::set<std::tuple<Term, SetNumber, std::uint32_t>>> sealed_;
  std::int64_t commits_ = 0;
  std::int64_t moves_ = 0;  // to another layout, within a generation
};

}  // namespace evenkeel::sim
