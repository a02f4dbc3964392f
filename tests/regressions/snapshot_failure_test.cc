// A server cannot write its part of a checkpoint while another still writes its own, and the next checkpoint is due.
#include <catch2/catch.hpp>

#include "evenkeel/sim/simulation.h"

namespace evenkeel::sim {

TEST_CASE("a checkpoint that failed on one server does not make the next fail on another", "[regressions]") {
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    Scenario scenario = MakeScenario(seed);
    scenario.servers = 3;
    scenario.workers = 4;
    scenario.samples = 24;
    scenario.sample_us = {100, 100, 100, 100};
    scenario.step_us = 4000;
    scenario.delay_us = 200;
    scenario.overrides = {"train.sync.mode=asp",        "train.epochs=1",
                          "train.global_batch_size=8",  "batching.min_batch_size=1",
                          "checkpoint.every_commits=1", "membership.join_timeout_ms=2000"};
    scenario.faults = {
        Fault{.at_ms = static_cast<std::int64_t>(seed % 150), .kind = FaultKind::kSnapshotFailure, .node = "ps:0"}};
    const Verdict verdict = Simulate(scenario);
    INFO("seed " << seed << ": " << verdict.broken);
    CHECK(verdict.broken.empty());
  }
}

}  // namespace evenkeel::sim
