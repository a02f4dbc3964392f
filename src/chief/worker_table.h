// The workers that are members, and who of them is what: looked up by session, name or nonce, listed by rank, by what
// they may be given. Whatever a message asks is answered without a walk over all of them.
//
// Threading: none; one caller at a time.
// Lifetime:  pointers and references to a worker hold until it is removed.
// Limits:    the caller's. Cost: O(log n) a change.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chief/batch_split.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/ranges.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

// A share of samples cut for a worker.
struct Share {
  UpdateId update;
  Incarnation worker;
  Epoch epoch;
  RangeList positions;
};

struct WorkerState {
  std::string name;
  std::uint64_t nonce = 0;
  Incarnation incarnation;
  SessionId session;
  bool ready = false;
  std::optional<Rank> rank;     // set once admitted
  double weight = 1;            // share of the global batch
  double gradient_norm = 0;     // of the mean gradient of its newest measured update; 0: none is
  int slow_steps = 0;           // of its measured steps, in a row, with the least batch
  std::int64_t steps_seen = 0;  // measured steps that slow_steps has taken note of
  std::uint64_t next_sequence = 1;
  std::int64_t clock = 0;  // commits of this worker, or the minimum when it joined
  std::optional<UpdateId> bound;
  std::optional<Share> provisional;
  std::string state;
  std::optional<TimePoint> state_since;  // as the member said with its last renewal
  std::string data_paths;                // likewise
  std::int64_t memory_samples = 0;       // likewise: the largest batch that its memory holds; 0: not known
  std::string compute_fingerprint;
  bool taken_up = false;  // from its log, by a chief that was started again
  bool leaving = false;   // no ticket binds any more
  std::string leave_reason;
  bool standing_by = false;  // and was told so
  // From step reports.
  double step_seconds = 0;        // newest
  double seconds_per_sample = 0;  // smoothed
  StepTimeLine timed;             // by itself, before it was ready; per_sample 0: not
  // Of its newest step that was staged: from its binding until all servers had it, and as predicted (0: was not).
  double busy_seconds = 0, predicted_seconds = 0;
  double waiting_share = 0;             // of the time from one decision on its updates to the next; newest
  std::optional<TimePoint> idle_since;  // its last update was decided
};

class WorkerTable {
 public:
  using ByIncarnation = std::map<Incarnation, WorkerState>;
  // The slowest first, then by rank.
  struct IdleKey {
    std::int64_t clock = 0;
    Rank rank;
    Incarnation worker;
    friend auto operator<=>(const IdleKey&, const IdleKey&) = default;
  };

  // Requires a new incarnation.
  const WorkerState& Add(WorkerState worker);
  // Requires that it is there.
  WorkerState Remove(Incarnation incarnation);
  // change(WorkerState&) may alter all but incarnation, name and nonce, and must not use the table.
  template <class F>
  void Change(const WorkerState& worker, F&& change) {
    WorkerState& own = workers_.at(worker.incarnation);
    const Roles before = RolesOf(own);
    change(own);
    const Roles after = RolesOf(own);
    if (before == after) return;
    if (before.TrainingRank() != after.TrainingRank()) ++training_changes_;
    Unlist(own.incarnation, before);
    List(own.incarnation, after);
  }

  // Null where there is none.
  const WorkerState* Find(Incarnation incarnation) const;
  const WorkerState* BySession(SessionId session) const;
  const WorkerState* ByName(const std::string& name) const;
  const WorkerState* ByNonce(std::uint64_t nonce) const;
  const WorkerState& At(Incarnation incarnation) const { return workers_.at(incarnation); }

  // By incarnation.
  ByIncarnation::const_iterator begin() const { return workers_.begin(); }
  ByIncarnation::const_iterator end() const { return workers_.end(); }
  std::size_t size() const { return workers_.size(); }
  bool empty() const { return workers_.empty(); }

  // --- admitted ones
  std::int64_t ranks_taken() const { return static_cast<std::int64_t>(by_rank_.size()); }
  Rank LowestFreeRank(Rank from = Rank(0)) const;
  std::int64_t LeastClock() const;  // 0 without any
  // Without those that leave.
  int training() const { return training_; }
  std::uint64_t training_changes() const { return training_changes_; }  // of who trains and at which rank
  std::vector<const WorkerState*> TrainingByRank() const;
  // The least of those that hold or may hold a ticket; nullopt without any.
  std::optional<std::int64_t> LeastHeldClock() const;
  // That may be given a ticket: training and without a bound one. With a provisional ticket: the same, those that have
  // one.
  const std::set<IdleKey>& idle() const { return idle_; }
  const std::set<IdleKey>& idle_with_provisional() const { return idle_with_provisional_; }

  // --- others
  // Ready, not admitted, not leaving.
  const std::set<Incarnation>& ready() const { return ready_; }
  const std::set<Incarnation>& with_provisional() const { return with_provisional_; }

 private:
  // What decides in which lists a worker stands.
  struct Roles {
    SessionId session;
    std::optional<Rank> rank;
    std::int64_t clock = 0;
    bool ready = false, leaving = false, bound = false, provisional = false;
    std::optional<Rank> TrainingRank() const { return leaving ? std::nullopt : rank; }
    friend bool operator==(const Roles&, const Roles&) = default;
  };
  static Roles RolesOf(const WorkerState& worker);
  void List(Incarnation worker, const Roles& roles);
  void Unlist(Incarnation worker, const Roles& roles);

  ByIncarnation workers_;
  std::set<std::pair<SessionId, Incarnation>> by_session_;
  std::set<std::pair<std::string, Incarnation>> by_name_;
  std::set<std::pair<std::uint64_t, Incarnation>> by_nonce_;
  std::map<Rank, Incarnation> by_rank_;
  int training_ = 0;
  std::uint64_t training_changes_ = 0;
  std::map<std::int64_t, int> clocks_, held_clocks_;  // how many have it
  std::set<IdleKey> idle_, idle_with_provisional_;
  std::set<Incarnation> ready_, with_provisional_;
};

}  // namespace evenkeel
