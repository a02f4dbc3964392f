// What must hold whatever happens, checked after each event from what chief, log and servers show to the outside. It
// keeps its own ledger, clocks and history, from the commit log alone, and shares no code with the chief's.
//
// Threading: none. The first broken invariant is kept; nothing after it counts.
#pragma once

#include <cstdint>
#include <map>
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
  Invariants(const Experiment& experiment, std::int64_t samples, std::uint32_t servers);

  // --- the chief
  void ChiefStarts(const ChiefOptions& options);
  void ChiefSends(const Message& message);
  void LogAppended(const LogRecord& record);
  void JobEnded(const EndAction& end, const std::map<Version, Manifest>& manifests);
  void CheckpointWritten(const Manifest& manifest, const std::vector<std::uint64_t>& part_fingerprints);

  // --- servers; a life of a process has a number of its own
  void ServerStarts(std::uint32_t server);
  void ServerSends(std::uint32_t server, const Message& message);
  // Initialised or restored, for the chief of a term.
  void ServerHolds(std::uint32_t server, Term term, Version version, std::uint64_t fingerprint);
  void ServerTakes(std::uint32_t server, UpdateId update);  // a part of it, from its worker
  void ServerApplied(std::uint32_t server, const Decision& decision, std::uint64_t fingerprint);
  void ServerEnded(std::uint32_t server, const absl::Status& status);

  // A server tells a worker that its incarnation is no more.
  void WorkerCalledStale(std::uint32_t server, Term term, Incarnation incarnation);

  void Break(std::string what);
  bool broken() const { return !broken_.empty(); }
  const std::string& what() const { return broken_; }
  std::int64_t commits() const { return commits_; }
  std::int64_t fenced() const { return static_cast<std::int64_t>(fenced_.size()); }

 private:
  struct Commit {
    Decision decision;
    std::uint64_t fingerprint = 0;  // after it
  };
  // The commits of a generation, and the checkpoint that it started from.
  struct Line {
    std::optional<std::pair<Term, Version>> base;
    std::vector<Commit> commits;
  };
  struct Clock {
    std::int64_t commits = 0;
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
  struct Grant {
    Epoch epoch;
    RangeList positions;
    bool bound = false;
    CommitNumber bound_at;
  };

  void RestoreHistory(std::vector<Commit> history, CommitNumber last);
  void StartGeneration(Generation generation, const std::optional<std::pair<Term, Version>>& base);
  // The term in which the generation began, of those up to `term`; another one may have begun it again after a crash.
  Term LineTerm(Generation generation, Term term) const;
  std::vector<Commit> HistoryUpTo(Term term, const Version& version) const;
  bool IsCurrent(const Server& server) const {
    return server.holds && server.held_in == line_term_ && server.version.generation == generation_;
  }
  void OnRollback(const RollbackRecord& record);
  void OnCommit(const CommitRecord& record);
  bool IsAdopted(const Decision& decision);
  void CheckUpdate(const CommittedUpdate& update, const Decision& decision);
  void OnGrant(UpdateId update, bool bound, const Version& version);
  void Spend(const CommittedUpdate& update);
  void CheckSpread();
  std::uint64_t FingerprintAt(CommitNumber commit) const;
  std::string Name(std::uint32_t server) const;

  const Experiment& experiment_;
  const std::int64_t samples_;
  std::string broken_;

  // The history that survives.
  Term term_;
  Term line_term_;  // in which this generation began
  Generation generation_;
  CommitNumber start_;           // of this generation
  std::vector<Commit> history_;  // commit n at n - 1
  std::map<std::pair<Term, Generation>, Line> lines_;  // every one there ever was
  std::set<Version> checkpoints_;
  std::vector<std::vector<bool>> spent_;     // by epoch and position
  std::vector<std::int64_t> spent_samples_;  // by epoch
  std::uint64_t chain_hash_ = 0;

  // This term's.
  std::map<Incarnation, Clock> admitted_;
  std::set<Incarnation> fenced_;
  std::map<Incarnation, MembershipEpoch> fenced_in_;  // as servers were told
  std::set<Incarnation> welcomed_;  // workers that the chief has ended in no way
  std::map<UpdateId, Grant> grants_;
  std::set<std::pair<SetNumber, std::uint32_t>> decided_sets_;

  std::set<UpdateId> committed_;  // ever
  std::vector<Server> servers_;
  // (term, set, attempt) that each server reported sealed.
  std::vector<std::set<std::tuple<Term, SetNumber, std::uint32_t>>> sealed_;
  std::int64_t commits_ = 0;
};

}  // namespace evenkeel::sim
