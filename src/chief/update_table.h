// Undecided updates, the sets that they commit in, and what servers have said of them.
//
// Threading: none; one caller at a time. Time is always passed in.
// Cost: O(log n) a report of one server of one update; what is complete, overdue or fenced is found without a walk over
// all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "chief/deadline_index.h"
#include "chief/worker_table.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

// What an update's step takes of time. Decides nothing of the update itself.
struct UpdateTiming {
  TimePoint bound_since{};
  std::optional<TimePoint> staged_since;  // on every server; folded: as reported
  double idle_seconds = 0;                // of its worker, before it
  double predicted_seconds = 0;           // 0: was not
  double compute_seconds = 0;             // as reported; 0: not yet
  bool first_of_size = false;             // likewise
  bool measured = false;                  // and given to the batch controller
};

// A bound, undecided update.
struct UpdateState {
  Share share;
  Rank rank;
  SetNumber set;
  CommitNumber bound_at;
  bool offer = false;  // as in its ticket
  TimePoint deadline = kNever;
  std::vector<std::optional<Staged>> staged;  // by server
  std::size_t staged_count = 0;               // of them
  std::optional<MembershipEpoch> fenced_in;   // its worker is dead; decided when every server acknowledged this epoch
  UpdateTiming timing;
  bool staged_everywhere() const { return staged_count == staged.size(); }
};

// Updates that commit together.
struct SetState {
  std::uint32_t attempt = 0;
  std::vector<UpdateId> updates;  // rank order
  std::size_t incomplete = 0;     // of them, not staged everywhere
  bool seal_sent = false;         // with backup workers only once the set is chosen
  bool whole_epoch_end = false;   // bsp: takes the epoch's last positions, so everybody is waited for
  bool folded = false;            // servers sum it as it comes, in its order
  std::size_t next = 0;           // folded: of updates, the first that some server still waits for
  std::vector<bool> sealed;       // by server
  std::size_t sealed_count = 0;
  std::vector<std::vector<BlockNorm>> norms;
  bool sealed_everywhere() const { return seal_sent && sealed_count == sealed.size(); }
};

class UpdateTable {
 public:
  const std::map<UpdateId, UpdateState>& updates() const { return updates_; }
  const std::map<SetNumber, SetState>& sets() const { return sets_; }
  const UpdateState* Find(const UpdateId& id) const;
  const UpdateState& At(const UpdateId& id) const { return updates_.at(id); }
  const SetState& Set(SetNumber number) const { return sets_.at(number); }

  // --- a life of an update
  // A set to come, which takes an epoch's last positions.
  void MarkEpochEnd(SetNumber number) { sets_[number].whole_epoch_end = true; }
  // A set to come, whose updates' deadlines are to be set one after the other.
  void MarkFolded(SetNumber number) { sets_[number].folded = true; }
  // The last of its set, in rank order. Requires a new id; staged as long as there are servers.
  void Bind(UpdateState update);
  // Requires that it is there.
  void Stage(const UpdateId& id, std::size_t server, Staged staged);
  // Requires that it is there.
  UpdateTiming& Timing(const UpdateId& id) { return updates_.at(id).timing; }
  // Its worker is dead. Requires that it is there.
  void Fence(const UpdateId& id, MembershipEpoch epoch);
  // Takes it out of its set too; a set that is empty then goes. Requires that it is there.
  UpdateState Drop(const UpdateId& id);
  void Clear();

  // --- a life of a set; requires that it is there
  // All servers are to say anew that they hold it; a further attempt where they were asked before. A folded one's
  // updates are to be staged anew then.
  void BeginSeal(SetNumber number, std::size_t servers);
  // Of a folded set, the first update in its order that is neither staged everywhere nor fenced, where it has no
  // deadline yet: all after it may wait for it.
  const UpdateState* NextToCome(SetNumber number);
  // kNever: its worker has done its part, or may have to wait for others first.
  TimePoint DeadlineOf(const UpdateId& id) const { return deadlines_.Of(id); }
  void SetDeadline(const UpdateId& id, TimePoint deadline) { deadlines_.Set(id, deadline); }
  void Seal(SetNumber number, std::size_t server, std::vector<BlockNorm> norms);
  // Takes it and its updates, in its order, out of the table.
  std::pair<SetState, std::vector<UpdateState>> Take(SetNumber number);
  // The first that all servers have sealed and staged.
  std::optional<SetNumber> FirstComplete() const;

  // --- time
  // Of all updates but those fenced.
  TimePoint NextDeadline() const { return deadlines_.Next(); }
  // Nothing was seen for so long: no deadline comes sooner for it, and no step has taken longer.
  void Shift(Duration by);
  // Past their deadline, ascending: none that is staged everywhere.
  std::vector<UpdateId> Overdue(TimePoint now) const { return deadlines_.Due(now); }
  // Of dead workers, ascending.
  const std::set<UpdateId>& fenced() const { return fenced_; }

 private:
  UpdateState Erase(const UpdateId& id);

  std::map<UpdateId, UpdateState> updates_;
  std::map<SetNumber, SetState> sets_;
  DeadlineIndex<UpdateId> deadlines_;
  std::set<UpdateId> fenced_;
  std::set<SetNumber> sealed_;  // everywhere
};

}  // namespace evenkeel
