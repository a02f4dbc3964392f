#include "evenkeel/launch/trace_player.h"

#include <vector>

#include "catch2/catch.hpp"

namespace evenkeel {
namespace {

using Changes = std::vector<TracePlayer::Change>;

const std::vector<AvailabilityEvent> kTrace = {{0, true, "a"},     {0, true, "b"},     {0, true, "c"},
                                               {2000, false, "a"}, {4000, false, "b"}, {6000, true, "d"}};

TEST_CASE("a trace plays at its speed, on the lowest free places", "[launch][fast]") {
  ManualClock clock;
  TracePlayer player(kTrace, 8, 2);
  CHECK(player.places() == 3);
  CHECK(player.first_alive() == 3);
  CHECK(player.Due(clock.Now()) == Changes{{0, true, "a"}, {1, true, "b"}, {2, true, "c"}});
  clock.Advance(std::chrono::seconds(100));  // the job gathers
  CHECK(player.Due(clock.Now()).empty());
  CHECK(player.Next() == kNever);
  player.Begin(clock.Now());
  CHECK(player.Next() == clock.Now() + std::chrono::seconds(1));
  clock.Advance(std::chrono::milliseconds(999));
  CHECK(player.Due(clock.Now()).empty());
  clock.Advance(std::chrono::milliseconds(1));
  CHECK(player.Due(clock.Now()) == Changes{{0, false, "a"}});
  clock.Advance(std::chrono::seconds(2));
  CHECK(player.Due(clock.Now()) == Changes{{1, false, "b"}, {0, true, "d"}});
  CHECK(player.over());
  CHECK(player.Next() == kNever);
}

TEST_CASE("nodes beyond the most workers wait for a place", "[launch][fast]") {
  TracePlayer player(kTrace, 2, 1);
  player.Begin(TimePoint{});
  CHECK(player.places() == 2);
  CHECK(player.first_alive() == 2);
  CHECK(player.Due(TimePoint{std::chrono::seconds(2)}) ==
        Changes{{0, true, "a"}, {1, true, "b"}, {0, false, "a"}, {0, true, "c"}});
}

}  // namespace
}  // namespace evenkeel
