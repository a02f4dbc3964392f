// What the commit log says about a job: kept by the chief as it writes, gathered from the files when it is started
// again.
//
// Threading: none; one caller at a time.
// Limits:    `commits` holds those that no durable checkpoint covers; everything else is bounded by the living members
//            and the number of rollbacks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "evenkeel/protocol/log_record.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

// Of the worker of a committed update, which had `before`. The log says none where the chief had ended the worker
// before its update committed; a machine that stops may lose that end, but not the commit: servers keep it.
inline std::int64_t ClockAfter(const CommittedUpdate& update, std::int64_t before) {
  return update.clock > 0 ? update.clock : before + 1;
}

class LogHistory {
 public:
  struct Member {
    AdmissionRecord admission;
    std::int64_t clock = 0;  // newest; the members' least when it was admitted
    friend bool operator==(const Member&, const Member&) = default;
  };

  void Add(const LogRecord& record);

  // All that Add was told, but for the commits: what a new segment of the log begins with.
  SegmentRecord Segment() const;

  // Whether the version is of the surviving line: no rollback has left it behind.
  bool Survives(const Version& version) const;
  // A generation for a history that starts in `term`: never one that an earlier term started, also where a crash took
  // the end of the log, because a term's number is durable before anything is sent in it.
  Generation NewGeneration(Term term) const;

  std::string job_id;
  Term last_term;
  Generation last_generation;          // highest that any record names
  Incarnation last_incarnation;        // highest that any record names
  std::optional<EndRecord> end;        // of the newest term, when it ended
  std::int64_t samples_committed = 0;  // surviving or not
  double training_seconds = 0;         // as in SegmentRecord
  // The line that the log ends in.
  Generation generation;                  // 0: none yet
  std::vector<RollbackRecord> rollbacks;  // oldest first
  std::optional<LayoutRecord> layout;
  std::optional<LayoutRecord> last_layout;  // also of a line that a rollback has ended
  MembershipEpoch membership_epoch;
  std::map<Incarnation, Member> members;
  std::deque<Decision> commits;  // after the newest durable checkpoint of this line
  // Workers that were members since the last segment began: those of `commits`, but for one that was fenced before it.
  std::map<Incarnation, std::string> names;
};

}  // namespace evenkeel
