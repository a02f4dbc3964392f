#include "chief/lease_table.h"

#include <algorithm>

namespace evenkeel {

bool LeaseTable::Renew(Incarnation member, TimePoint now) {
  if (!until_.Contains(member)) return false;
  until_.Set(member, std::max(until_.Of(member), now + lease_));
  return true;
}

std::vector<Incarnation> LeaseTable::Expire(TimePoint now) {
  if (const Duration gap = Gap(now); gap > Duration{}) until_.ShiftAll(gap);
  last_ = now;
  std::vector<Incarnation> over = until_.Due(now);
  for (Incarnation member : over) until_.Erase(member);
  return over;
}

}  // namespace evenkeel
