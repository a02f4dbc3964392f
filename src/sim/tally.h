// What a simulation counts beside its invariants: work done, members, waiting.
//
// Threading: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/log_record.h"

namespace evenkeel::sim {

struct Tally {
  std::int64_t workers_min = 1;

  double samples_computed = 0;  // a sample whose computing was cut off counts by the share of its time
  Duration computing{0};        // of all workers together
  std::int64_t joins = 0, fences = 0;
  std::int64_t members = 0, members_most = 0;
  TimePoint below_since = kNever;  // fewer than workers_min, after the first commit
  Duration below{0};
  TimePoint last_commit = kNever;
  Duration longest_gap{0};  // between commits
  Version furthest;         // that was ever reached
  TimePoint furthest_at = kNever;

  void Computed(double samples, Duration time) {
    samples_computed += samples;
    computing += time;
  }
  void LogAppended(const LogRecord& record, TimePoint now) {
    if (std::holds_alternative<TermRecord>(record)) {
      members = 0;
    } else if (std::holds_alternative<AdmissionRecord>(record)) {
      ++joins;
      members_most = std::max(members_most, ++members);
    } else if (std::holds_alternative<FenceRecord>(record)) {
      ++fences;
      --members;
    } else if (const auto* commit = std::get_if<CommitRecord>(&record)) {
      if (commit->decision.version > furthest) {
        furthest = commit->decision.version;
        furthest_at = now;
      }
      if (last_commit != kNever) longest_gap = std::max(longest_gap, now - last_commit);
      last_commit = now;
    }
    if (last_commit == kNever) return;
    if (members < workers_min) {
      if (below_since == kNever) below_since = now;
    } else if (below_since != kNever) {
      Ends(now);
    }
  }
  void Ends(TimePoint now) {
    if (below_since != kNever) below += now - below_since;
    below_since = kNever;
  }
};

}  // namespace evenkeel::sim
