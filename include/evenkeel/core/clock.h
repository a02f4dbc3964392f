// Time. Pure code never reads a clock: `now` is passed in. Runners read one through this interface.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace evenkeel {

using Duration = std::chrono::nanoseconds;
// Monotonic; its origin means nothing.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
// Seconds and fractions since 1970, for people and files only.
using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;

constexpr TimePoint kNever = TimePoint::max();

constexpr double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }
constexpr Duration FromSeconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}
constexpr Duration Milliseconds(std::int64_t ms) { return std::chrono::milliseconds(ms); }

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  virtual WallTime WallNow() const = 0;
  static const Clock& Real();
};

// Moves only when told. Not thread-safe.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  WallTime WallNow() const override { return WallTime(now_.time_since_epoch()); }
  void Advance(Duration d) { now_ += d; }

 private:
  TimePoint now_{std::chrono::seconds(1)};
};

}  // namespace evenkeel
