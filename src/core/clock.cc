#include "evenkeel/core/clock.h"

namespace evenkeel {
namespace {

class RealClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
  WallTime WallNow() const override { return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now()); }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

}  // namespace evenkeel
