#include "evenkeel/protocol/renewal.h"

#include <algorithm>

namespace evenkeel {
namespace {

constexpr Duration kShortestInterval = std::chrono::milliseconds(1);

}  // namespace

void Renewal::Begin(const Welcome& welcome, TimePoint now) {
  interval_ = std::max<Duration>(Milliseconds(welcome.renew_ms), kShortestInterval);
  bound_ = static_cast<int>(std::clamp<std::int64_t>(Milliseconds(welcome.lease_ms) / interval_, 2, 1 << 20));
  next_ = now + interval_;
  Heard(now);
}

void Renewal::Heard(TimePoint now) {
  heard_ = now;
  unanswered_ = 0;
}

bool Renewal::Due(TimePoint now) {
  if (unanswered_ >= bound_) {
    End();
    return false;
  }
  ++unanswered_;
  next_ = now + interval_;
  return true;
}

}  // namespace evenkeel
