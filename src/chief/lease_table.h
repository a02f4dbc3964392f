// Leases of members: who lives until when.
//
// Threading: none; one caller at a time. Time is always passed in.
#pragma once

#include <vector>

#include "chief/deadline_index.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/ids.h"

namespace evenkeel {

class LeaseTable {
 public:
  // A caller that comes later than `late_after` past its last Expire held up the renewals too: that gap is not held
  // against the members.
  LeaseTable(Duration lease, Duration late_after) : lease_(lease), late_after_(late_after) {}

  void Grant(Incarnation member, TimePoint now) { until_.Set(member, now + lease_); }
  // False when the lease is not there any more: the member must join again.
  bool Renew(Incarnation member, TimePoint now);
  void End(Incarnation member) { until_.Erase(member); }
  // Where `now` is late: how far past the last Expire or gap it is, and all leases move by that; else zero. To be asked
  // before what has come meanwhile is looked at: a lease that is renewed first would get the gap on top.
  Duration TakeGap(TimePoint now);
  // Members whose lease is over, ascending; their leases end. Takes the gap, if there is one.
  std::vector<Incarnation> Expire(TimePoint now);
  TimePoint NextExpiry() const { return until_.Next(); }
  // kNever for an unknown member.
  TimePoint Until(Incarnation member) const { return until_.Of(member); }

 private:
  Duration lease_;
  Duration late_after_;
  TimePoint last_ = kNever;
  DeadlineIndex<Incarnation> until_;
};

}  // namespace evenkeel
