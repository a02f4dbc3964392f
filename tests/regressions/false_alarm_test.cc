// What the simulator took for broken and was not: a server or a worker that was held up has missed what has become of
// it.
#include <catch2/catch.hpp>

#include "evenkeel/sim/simulation.h"

namespace evenkeel::sim {
namespace {

// As long as seeds mean what they meant.
std::string Broken(std::uint64_t seed, std::vector<Fault> faults) {
  Scenario scenario = MakeScenario(seed);
  scenario.faults = std::move(faults);
  return Simulate(scenario).broken;
}

}  // namespace

TEST_CASE("a worker that is held up while the chief evicts it bounds nobody in ssp", "[regressions]") {
  CHECK(Broken(7003138, {{.at_ms = 10, .kind = FaultKind::kJoin, .node = "worker:6"},
                         {.at_ms = 212,
                          .kind = FaultKind::kBreak,
                          .node = "ps:0",
                          .peer = "worker:3",
                          .for_ms = 1799,
                          .share = 0.7314294690461912},
                         {.at_ms = 269, .kind = FaultKind::kDrain, .node = "ps:1"},
                         {.at_ms = 1650, .kind = FaultKind::kPause, .node = "worker:4", .for_ms = 2863}})
            .empty());
}

TEST_CASE("a server that is held up adopts what was prepared, and the next chief's rollback finds it",
          "[regressions]") {
  CHECK(Broken(7005502, {{.at_ms = 816, .kind = FaultKind::kJoin, .node = "worker:5"},
                         {.at_ms = 883, .kind = FaultKind::kScale, .for_ms = 14, .count = 6},
                         {.at_ms = 892, .kind = FaultKind::kPartition, .node = "chief", .peer = "ps:2", .for_ms = 142},
                         {.at_ms = 1796, .kind = FaultKind::kPause, .node = "ps:3", .for_ms = 2367},
                         {.at_ms = 3122, .kind = FaultKind::kCrashChief, .node = "chief", .for_ms = 25}})
            .empty());
}

TEST_CASE("a job whose steps take seconds is slow, and does not hang", "[regressions]") {
  CHECK(Broken(9602782, {{.at_ms = 5242, .kind = FaultKind::kJoin, .node = "worker:12"}}).empty());
}

TEST_CASE("a slow job that trains all once more, because its only checkpoint failed, does not hang", "[regressions]") {
  CHECK(Broken(9901029, {{.at_ms = 10274, .kind = FaultKind::kManifestFailure, .node = "chief"}}).empty());
}

}  // namespace evenkeel::sim
