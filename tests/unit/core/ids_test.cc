#include "evenkeel/core/ids.h"

#include <type_traits>
#include <unordered_set>

#include <catch2/catch.hpp>

#include "evenkeel/core/clock.h"

namespace evenkeel {
namespace {

static_assert(!std::is_convertible_v<std::uint64_t, Term>);
static_assert(!std::is_convertible_v<Term, Generation>);

TEST_CASE("ids count up and order", "[core][ids]") {
  CHECK(Term().value() == 0);
  CHECK(Term(4).Next() == Term(5));
  CHECK(Rank(1) < Rank(2));
  CHECK(Version{Generation(1), CommitNumber(9)} < Version{Generation(2), CommitNumber(0)});
  CHECK(UpdateId{Term(1), Incarnation(2), 3} < UpdateId{Term(1), Incarnation(2), 4});
  std::unordered_set<Rank> ranks = {Rank(1), Rank(1), Rank(2)};
  CHECK(ranks.size() == 2);
}

TEST_CASE("versions and updates have short names", "[core][ids]") {
  CHECK(ToString(Version{Generation(1), CommitNumber(42)}) == "g1.c42");
  CHECK(ToString(UpdateId{Term(1), Incarnation(3), 17}) == "t1.i3.s17");
}

TEST_CASE("a manual clock moves only when told, the real one never back", "[core][clock]") {
  ManualClock manual;
  TimePoint start = manual.Now();
  CHECK(manual.Now() == start);
  manual.Advance(Milliseconds(5));
  CHECK(manual.Now() - start == std::chrono::milliseconds(5));
  CHECK(ToSeconds(FromSeconds(0.25)) == 0.25);
  TimePoint first = Clock::Real().Now();
  CHECK(Clock::Real().Now() >= first);
  CHECK(Clock::Real().WallNow().time_since_epoch() > std::chrono::hours(24 * 365 * 50));
}

}  // namespace
}  // namespace evenkeel
