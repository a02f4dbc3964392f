#include "chief/lease_table.h"

#include <algorithm>

namespace evenkeel {

bool LeaseTable::Renew(Incarnation member, TimePoint now) {
  auto it = until_.find(member);
  if (it == until_.end()) return false;
  it->second = std::max(it->second, now + lease_);
  return true;
}

std::vector<Incarnation> LeaseTable::Expire(TimePoint now) {
  if (last_ != kNever && now - last_ > late_after_) {
    for (auto& [member, until] : until_) until += now - last_;
  }
  last_ = now;
  std::vector<Incarnation> over;
  for (const auto& [member, until] : until_) {
    if (until <= now) over.push_back(member);
  }
  for (Incarnation member : over) until_.erase(member);
  return over;
}

TimePoint LeaseTable::NextExpiry() const {
  TimePoint next = kNever;
  for (const auto& [member, until] : until_) next = std::min(next, until);
  return next;
}

TimePoint LeaseTable::Until(Incarnation member) const {
  auto it = until_.find(member);
  return it == until_.end() ? kNever : it->second;
}

}  // namespace evenkeel
