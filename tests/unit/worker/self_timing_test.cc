#include "worker/self_timing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

namespace evenkeel {
namespace {

// A machine whose steps take fixed + per_sample·b, and `first` more at a size that is new.
struct Machine {
  double fixed, per_sample, first;
  ManualClock clock;
  std::map<std::int64_t, int> steps;

  absl::StatusOr<SelfTiming> Time(Duration time) {
    const auto step = [this](std::int64_t size) {
      clock.Advance(FromSeconds(fixed + per_sample * static_cast<double>(size) + (steps[size]++ == 0 ? first : 0)));
      return absl::OkStatus();
    };
    return TimeSteps(step, 8, 32, time, clock, [] { return false; });
  }
};

}  // namespace

TEST_CASE("a worker finds its fixed and its per-sample cost, and does not count the first step of a size",
          "[worker][fast]") {
  Machine machine{0.004, 0.0005, 0.050, {}, {}};
  const auto timing = machine.Time(std::chrono::milliseconds(500));
  REQUIRE(timing.ok());
  CHECK(timing->fixed_seconds == Approx(0.004).epsilon(0.01));
  CHECK(timing->seconds_per_sample == Approx(0.0005).epsilon(0.01));
}

TEST_CASE("where steps are alike half the time is enough; where a quota makes them differ all of it is taken",
          "[worker][fast]") {
  Machine even{0.004, 0.0005, 0.050, {}, {}};
  const TimePoint began = even.clock.Now();
  REQUIRE(even.Time(std::chrono::milliseconds(500)).ok());
  CHECK(ToSeconds(even.clock.Now() - began) < 0.3);
  // Of each 100 ms, it has 40.
  ManualClock clock;
  double used = 0;
  const auto step = [&](std::int64_t size) {
    double left = 0.004 + 0.0005 * static_cast<double>(size);
    while (left > 0) {
      const double now = std::min(left, 0.040 - used);
      clock.Advance(FromSeconds(now));
      left -= now;
      used += now;
      if (used < 0.040) continue;
      clock.Advance(std::chrono::milliseconds(60));
      used = 0;
    }
    return absl::OkStatus();
  };
  const TimePoint from = clock.Now();
  const auto timing = TimeSteps(step, 8, 32, std::chrono::milliseconds(500), clock, [] { return false; });
  REQUIRE(timing.ok());
  CHECK(ToSeconds(clock.Now() - from) >= 0.5);
}

TEST_CASE("a slow worker's timing ends soon after its time is over", "[worker][fast]") {
  Machine machine{0.5, 0.05, 0.5, {}, {}};
  const TimePoint began = machine.clock.Now();
  const auto timing = machine.Time(std::chrono::milliseconds(500));
  REQUIRE(timing.ok());
  CHECK(ToSeconds(machine.clock.Now() - began) < 2.5);
  CHECK(machine.steps == std::map<std::int64_t, int>{{8, 2}});
  CHECK(timing->seconds_per_sample == Approx((0.5 + 8 * 0.05) / 8));
}

TEST_CASE("where a sample costs next to nothing the slope stays positive; too fast to measure is not timed",
          "[worker][fast]") {
  Machine machine{0.01, 0, 0, {}, {}};
  const auto timing = machine.Time(std::chrono::milliseconds(200));
  REQUIRE(timing.ok());
  CHECK(timing->seconds_per_sample > 0);
  CHECK(timing->fixed_seconds + 32 * timing->seconds_per_sample == Approx(0.01));
  Machine none{0, 0, 0, {}, {}};
  CHECK(none.Time(Duration::zero())->seconds_per_sample == 0);
}

TEST_CASE("timing stops when told, and hands on what a step says", "[worker][fast]") {
  ManualClock clock;
  int steps = 0;
  const auto stopped = TimeSteps(
      [&](std::int64_t) {
        ++steps;
        clock.Advance(std::chrono::milliseconds(1));
        return absl::OkStatus();
      },
      1, 1, std::chrono::seconds(1), clock, [&] { return steps == 1; });
  CHECK(stopped->seconds_per_sample == 0);
  CHECK(steps == 1);
  const auto failed = TimeSteps([](std::int64_t) { return absl::InternalError("no memory"); }, 1, 2,
                                std::chrono::seconds(1), clock, [] { return false; });
  CHECK(failed.status().message() == "no memory");
}

TEST_CASE("a size is new until it was used, and again long after", "[worker][fast]") {
  BatchSizesSeen seen;
  CHECK(seen.Add(7));
  CHECK_FALSE(seen.Add(7));
  for (std::int64_t size = 100; size < 115; ++size) CHECK(seen.Add(size));
  CHECK_FALSE(seen.Add(7));
  for (std::int64_t size = 200; size < 216; ++size) CHECK(seen.Add(size));
  CHECK(seen.Add(7));
}

}  // namespace evenkeel
