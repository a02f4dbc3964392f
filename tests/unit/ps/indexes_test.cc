// What a server finds without a walk: pulls that wait, and the sets of an update.
#include <catch2/catch.hpp>

#include "evenkeel/ps/held_pulls.h"
#include "evenkeel/ps/set_index.h"

namespace evenkeel::ps {
namespace {

HeldPull Pull(std::uint64_t request, std::int64_t deadline_s) {
  return HeldPull{request, Version{}, TimePoint{std::chrono::seconds(deadline_s)}};
}

}  // namespace

TEST_CASE("pulls that wait are asked by stream and coming, and the next deadline is theirs", "[ps]") {
  HeldPulls pulls;
  REQUIRE(pulls.NextDeadline() == kNever);
  pulls.Add(SessionId(2), Pull(1, 9));
  pulls.Add(SessionId(2), Pull(2, 4));
  pulls.Add(SessionId(1), Pull(1, 9));
  REQUIRE(pulls.CountOf(SessionId(2)) == 2);
  REQUIRE(pulls.Contains(SessionId(2), 2));
  REQUIRE(!pulls.Contains(SessionId(1), 2));
  REQUIRE(pulls.NextDeadline() == TimePoint{std::chrono::seconds(4)});
  std::vector<std::pair<std::uint64_t, std::uint64_t>> asked;
  pulls.TakeIf([&](SessionId session, const HeldPull& pull) {
    asked.emplace_back(session.value(), pull.request);
    return pull.request == 2;
  });
  REQUIRE(asked == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{1, 1}, {2, 1}, {2, 2}});
  REQUIRE(pulls.NextDeadline() == TimePoint{std::chrono::seconds(9)});
  pulls.Erase(SessionId(2));
  pulls.Erase(SessionId(7));
  REQUIRE(pulls.CountOf(SessionId(2)) == 0);
  REQUIRE(pulls.NextDeadline() == TimePoint{std::chrono::seconds(9)});  // another pull's
  pulls.Erase(SessionId(1));
  REQUIRE(pulls.NextDeadline() == kNever);
}

TEST_CASE("an update's sets are found, ascending, until they are removed", "[ps]") {
  const UpdateId one{Term(1), Incarnation(1), 1}, two{Term(1), Incarnation(2), 1};
  SetIndex index;
  index.Add(SetNumber(5), {one, two});
  index.Add(SetNumber(3), {two});
  REQUIRE(index.Of(one) == std::vector<SetNumber>{SetNumber(5)});
  REQUIRE(index.Of(two) == std::vector<SetNumber>{SetNumber(3), SetNumber(5)});
  REQUIRE(index.NewestOf(two)->set == SetNumber(5));
  REQUIRE(index.NewestOf(two)->position == 1);
  index.Remove(SetNumber(5), {one, two});
  REQUIRE(index.Of(one).empty());
  REQUIRE(index.Of(two) == std::vector<SetNumber>{SetNumber(3)});
  index.Clear();
  REQUIRE(!index.NewestOf(two));
  REQUIRE(index.Of(two).empty());
}

}  // namespace evenkeel::ps
