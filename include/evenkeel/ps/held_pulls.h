// Pulls that wait for a version or an admission, by the stream that they came on.
//
// Threading: none; one caller at a time. Limits: the caller's.
// Cost: streams without a pull that waits cost nothing; the next deadline is at hand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "evenkeel/core/clock.h"
#include "evenkeel/core/ids.h"

namespace evenkeel::ps {

struct HeldPull {
  std::uint64_t request = 0;
  Version at_least;
  TimePoint deadline;
  bool bfloat16 = false;
};

class HeldPulls {
 public:
  void Add(SessionId session, HeldPull pull) {
    by_session_[session].push_back(pull);
    deadlines_.insert(pull.deadline);
  }
  void Erase(SessionId session) {
    auto it = by_session_.find(session);
    if (it == by_session_.end()) return;
    for (const HeldPull& pull : it->second) Forget(pull);
    by_session_.erase(it);
  }
  // Takes out those of which take(session, pull) says so; asks in order of the streams' numbers, then of coming.
  template <class F>
  void TakeIf(F&& take) {
    for (auto it = by_session_.begin(); it != by_session_.end();) {
      std::erase_if(it->second, [&](const HeldPull& pull) {
        if (!take(it->first, pull)) return false;
        Forget(pull);
        return true;
      });
      it = it->second.empty() ? by_session_.erase(it) : std::next(it);
    }
  }

  bool Contains(SessionId session, std::uint64_t request) const {
    auto it = by_session_.find(session);
    return it != by_session_.end() && std::any_of(it->second.begin(), it->second.end(),
                                                  [request](const HeldPull& pull) { return pull.request == request; });
  }
  std::size_t CountOf(SessionId session) const {
    auto it = by_session_.find(session);
    return it == by_session_.end() ? 0 : it->second.size();
  }
  // kNever where none waits.
  TimePoint NextDeadline() const { return deadlines_.empty() ? kNever : *deadlines_.begin(); }

 private:
  void Forget(const HeldPull& pull) { deadlines_.erase(deadlines_.find(pull.deadline)); }

  std::map<SessionId, std::vector<HeldPull>> by_session_;  // none is empty
  std::multiset<TimePoint> deadlines_;
};

}  // namespace evenkeel::ps
