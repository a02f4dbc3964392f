#include <catch2/catch.hpp>
#include <functional>
#include <memory>

#include "sim/world.h"
#include "unit/sim/planted_bugs.h"

namespace evenkeel::sim {
namespace {

constexpr std::uint64_t kSeeds = 1000;

// The first seed in which the bug breaks an invariant; 0: none does.
template <class Bug>
std::uint64_t FirstCaught(std::string* how) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Bug bug;
    const Verdict verdict = SimulateWith(MakeScenario(seed), bug);
    if (verdict.broken.empty()) continue;
    *how = verdict.broken;
    return seed;
  }
  return 0;
}

template <class Bug>
void RequireCaught(const std::string& says) {
  std::string how;
  const std::uint64_t seed = FirstCaught<Bug>(&how);
  INFO("seed " << seed << ": " << how);
  REQUIRE(seed > 0);
  CHECK_THAT(how, Catch::Contains(says));
  CHECK(Simulate(MakeScenario(seed)).broken.empty());
}

}  // namespace

TEST_CASE("a decision that is applied twice after a retry is caught", "[sim]") {
  RequireCaught<AppliesTwice>("parameters");
}

TEST_CASE("a range that is not returned is caught", "[sim]") { RequireCaught<ForgetsRange>("positions"); }

TEST_CASE("a server that takes stages of a fenced incarnation is caught", "[sim]") {
  RequireCaught<AcceptsStale>("fenced");
}

TEST_CASE("a chief that counts arrivals instead of identities is caught", "[sim]") {
  RequireCaught<CountsArrivals>("was not sealed");
}

TEST_CASE("a server that gives a former version to one that prepares a place is caught", "[sim]") {
  RequireCaught<GivesFormerVersion>("fetched");
}

TEST_CASE("a layout that begins before all places are filled is caught", "[sim]") {
  RequireCaught<TakesFailedForReady>("was not filled");
}

TEST_CASE("a failing list of faults shrinks to fewer that fail", "[sim]") {
  std::string how;
  const Scenario scenario = MakeScenario(FirstCaught<AppliesTwice>(&how));
  auto breaks = [](const Scenario& smaller) {
    AppliesTwice bug;
    return !SimulateWith(smaller, bug).broken.empty();
  };
  Scenario small = scenario;
  small.faults = Shrink(scenario, 200, breaks);
  CHECK(small.faults.size() < scenario.faults.size());
  CHECK(breaks(small));
}

}  // namespace evenkeel::sim
