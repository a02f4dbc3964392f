#include "chief/lease_table.h"

#include <algorithm>
#include <utility>

namespace evenkeel {

bool LeaseTable::Renew(Incarnation member, TimePoint now) {
  if (!until_.Contains(member)) return false;
  until_.Set(member, std::max(until_.Of(member), now + lease_));
  return true;
}

Duration LeaseTable::TakeGap(TimePoint now) {
  if (last_ == kNever || now - last_ <= late_after_) return Duration::zero();
  const Duration gap = now - std::exchange(last_, now);
  until_.ShiftAll(gap);
  return gap;
}

std::vector<Incarnation> LeaseTable::Expire(TimePoint now) {
  (void)TakeGap(now);
  last_ = now;
  std::vector<Incarnation> over = until_.Due(now);
  for (Incarnation member : over) until_.Erase(member);
  return over;
}

}  // namespace evenkeel
