#include "evenkeel/sim/simulation.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace evenkeel::sim {

TEST_CASE("a thousand seeds break no invariant", "[sim]") {
  std::int64_t commits = 0, starts = 0, fenced = 0, moves = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Verdict verdict = Simulate(MakeScenario(seed));
    INFO("evenkeel simulate --seed " << seed << ": " << verdict.broken);
    REQUIRE(verdict.broken.empty());
    commits += verdict.commits;
    starts += verdict.starts;
    fenced += verdict.fenced;
    moves += verdict.moves;
  }
  // They meet what they are for.
  CHECK(commits > 20'000);
  CHECK(starts > 1200);
  CHECK(fenced > 1000);
  CHECK(moves > 300);
}

TEST_CASE("the same seed gives the same trace, another seed another", "[sim]") {
  for (std::uint64_t seed : {3, 17, 99}) {
    const Verdict first = Simulate(MakeScenario(seed)), second = Simulate(MakeScenario(seed));
    CHECK(first.trace_hash == second.trace_hash);
    CHECK(first.events == second.events);
    CHECK(first.at_ms == second.at_ms);
    CHECK(first.trace_hash != Simulate(MakeScenario(seed + 1)).trace_hash);
  }
}

TEST_CASE("seeds draw every kind of fault, dozens each", "[sim]") {
  std::vector<int> kinds(16);
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Scenario scenario = MakeScenario(seed);
    CHECK(scenario.faults.size() >= 24);
    for (const Fault& fault : scenario.faults) ++kinds.at(static_cast<std::size_t>(fault.kind));
  }
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    INFO(ToString(static_cast<FaultKind>(kind)));
    CHECK(kinds[kind] > 0);
  }
}

TEST_CASE("a list of faults comes back from its file", "[sim]") {
  const std::vector<Fault> faults = MakeScenario(5).faults;
  const auto read = FaultsFromJson(FaultsToJson(faults), "faults.json");
  REQUIRE(read.ok());
  CHECK(*read == faults);
  Scenario scenario = MakeScenario(5);
  scenario.faults = *read;
  CHECK(Simulate(scenario).trace_hash == Simulate(MakeScenario(5)).trace_hash);
}

TEST_CASE("a wrong list of faults names the entry and the field", "[sim]") {
  auto error = [](const char* json) { return std::string(FaultsFromJson(json, "f.json").status().message()); };
  CHECK_THAT(error(R"([{"kind": "scale", "count": -1}])"),
             Catch::Contains("fault 0: 'count': -1; expected a whole number from 1 to 64"));
  CHECK(error("{") == "f.json: not a JSON list of faults");
  CHECK_THAT(error(R"([{"kind": "pause", "node": "chief", "for_ms": 5}, {"kind": "paws"}])"),
             Catch::Contains("fault 1: 'kind': \"paws\"; expected one of kill, vanish"));
  CHECK_THAT(error(R"([{"kind": "kill", "share": 2}])"),
             Catch::Contains("fault 0: 'share': 2; expected a number from 0 to 1"));
  CHECK_THAT(error(R"([{"kind": "kill", "at_ms": -1}])"),
             Catch::Contains("fault 0: 'at_ms': -1; expected a whole number of milliseconds from 0 to 3600000"));
  CHECK_THAT(error(R"([{"kind": "kill", "for_ms": 1.5}])"),
             Catch::Contains("fault 0: 'for_ms': 1.5; expected a whole"));
  CHECK_THAT(error(R"([{"kind": "kill", "node": 1}])"), Catch::Contains("'node': 1; expected a text: chief, worker:N"));
  CHECK_THAT(error(R"([{"kind": "kill", "nodes": "ps:0"}])"), Catch::Contains("'nodes' is no field; they are at_ms"));
  CHECK_THAT(error(R"([{"at_ms": 1}])"), Catch::Contains("fault 0: it has no 'kind': one of kill"));
  CHECK_THAT(error(R"([{"at_ms": 1, "kind": "kill"}])"),
             Catch::Contains("kill needs a node: chief, worker:N or ps:N (N below 64)"));
  CHECK_THAT(error(R"([{"at_ms": 1, "kind": "kill", "node": "wroker:1"}])"), Catch::Contains("node is 'wroker:1'"));
  CHECK_THAT(error(R"([{"at_ms": 1, "kind": "slow", "node": "chief"}])"), Catch::Contains("slow needs a peer"));
  CHECK_THAT(error(R"([{"at_ms": 1, "kind": "slow", "node": "chief", "peer": "ps:"}])"),
             Catch::Contains("peer is 'ps:'"));
  CHECK(FaultsFromJson("[]", "f.json")->empty());
}

TEST_CASE("a list of faults is refused where nothing like one of them can happen", "[sim]") {
  auto error = [](const char* json) { return std::string(FaultsFromJson(json, "f.json").status().message()); };
  CHECK_THAT(error(R"([{"kind": "scale", "count": 0}])"), Catch::Contains("count is 0; the servers are 1 to 64"));
  CHECK_THAT(error(R"([{"kind": "scale", "count": 65}])"), Catch::Contains("count is 65"));
  CHECK_THAT(error(R"([{"kind": "kill", "node": "ps:64"}])"), Catch::Contains("node is 'ps:64'"));
  for (const char* kind : {"kill", "vanish", "leave", "drain", "join", "reconnect", "snapshot_failure"}) {
    const std::string json = absl::StrCat(R"([{"node": "chief", "kind": ")", kind, R"("}])");
    CHECK_THAT(error(json.c_str()), Catch::Contains(absl::StrCat(kind, " is not for the chief; it has pause, stop")));
  }
  CHECK_THAT(error(R"([{"kind": "snapshot_failure", "node": "worker:0"}])"), Catch::Contains("only servers, ps:N"));
  CHECK_THAT(error(R"([{"kind": "pause", "node": "ps:0"}])"), Catch::Contains("pause needs for_ms, above 0"));
  CHECK_THAT(error(R"([{"kind": "break", "node": "ps:0", "peer": "ps:0"}])"), Catch::Contains("both ps:0"));
  CHECK_THAT(error(R"([{"kind": "pause", "node": "ps:0", "for_ms": 3600001}])"), Catch::Contains("an hour"));
}

namespace {

// Three servers, two workers, nothing but what a test lets happen.
Scenario ThreeServers(std::vector<Fault> faults) {
  Scenario scenario;
  scenario.servers = 3;
  scenario.workers = 2;
  scenario.samples = 4000;
  scenario.tensor_floats = {160, 90};
  scenario.sample_us = {500};
  scenario.step_us = 10'000;
  scenario.delay_us = 200;
  scenario.overrides = {"train.epochs=1",
                        "train.global_batch_size=16",
                        "train.bucket_bytes=256",
                        "train.optimizer.adam={}",
                        "checkpoint.every_commits=20",
                        "membership.lease_ms=1000",
                        "membership.renew_ms=200",
                        "membership.ps_timeout_ms=10000",
                        "membership.ps_replacement_timeout_ms=2000",
                        "membership.join_timeout_ms=2000",
                        "membership.drain_ms=4000"};
  scenario.faults = std::move(faults);
  return scenario;
}

}  // namespace

TEST_CASE("servers leave, are drained, added and taken away, and no commit is trained again", "[sim]") {
  const Verdict verdict = Simulate(ThreeServers({{.at_ms = 300, .kind = FaultKind::kLeave, .node = "ps:1"},
                                                 {.at_ms = 700, .kind = FaultKind::kDrain, .node = "ps:0"},
                                                 {.at_ms = 1100, .kind = FaultKind::kScale, .for_ms = 50, .count = 4},
                                                 {.at_ms = 1800, .kind = FaultKind::kScale, .count = 2}}));
  CHECK(verdict.broken == "");
  CHECK(verdict.moves == 4);
  CHECK(verdict.commits == 250);
}

// In SSP the slowest that holds a ticket bounds all; worker:1 of this job leaves, and the ticket that it held is
// dropped because the job falls below workers_min.
TEST_CASE("a worker that leaves bounds nobody once its update is dropped", "[sim]") {
  Scenario scenario = MakeScenario(706614);
  REQUIRE(scenario.overrides.size() > 5);
  scenario.faults = {
      {.at_ms = 28, .kind = FaultKind::kKill, .node = "worker:2", .for_ms = 2908},
      {.at_ms = 1037, .kind = FaultKind::kVanish, .node = "worker:1", .for_ms = 1267},
      {.at_ms = 1107, .kind = FaultKind::kPartition, .node = "chief", .peer = "worker:0", .for_ms = 1637},
      {.at_ms = 1343, .kind = FaultKind::kJoin, .node = "worker:3"},
      {.at_ms = 1970, .kind = FaultKind::kPause, .node = "chief", .for_ms = 171, .share = 1},
      {.at_ms = 2053, .kind = FaultKind::kLeave, .node = "worker:0"},
      {.at_ms = 2129, .kind = FaultKind::kScale, .for_ms = 773, .count = 3},
      {.at_ms = 2718, .kind = FaultKind::kKill, .node = "worker:2"},
      {.at_ms = 2866, .kind = FaultKind::kDrain, .node = "worker:1"},
      {.at_ms = 2989, .kind = FaultKind::kVanish, .node = "worker:1"}};
  CHECK(Simulate(scenario).broken == "");
}

TEST_CASE("faults that did nothing are told", "[sim]") {
  const std::vector<Fault> idle = {{.at_ms = 100, .kind = FaultKind::kKill, .node = "worker:7"},
                                   {.at_ms = 200, .kind = FaultKind::kDrain, .node = "ps:9"},
                                   {.at_ms = 300, .kind = FaultKind::kBreak, .node = "worker:0", .peer = "worker:1"},
                                   {.at_ms = 3'000'000, .kind = FaultKind::kLeave, .node = "worker:0"}};
  std::vector<Fault> all = idle;
  all.insert(all.begin() + 3, {.at_ms = 400, .kind = FaultKind::kPause, .node = "worker:0", .for_ms = 50});
  const Verdict verdict = Simulate(ThreeServers(all));
  CHECK(verdict.broken == "");
  CHECK(verdict.idle == idle);
}

TEST_CASE("a server that stands by takes the place of one that leaves", "[sim]") {
  const Verdict verdict = Simulate(ThreeServers({{.at_ms = 300, .kind = FaultKind::kJoin, .node = "ps:3"},
                                                 {.at_ms = 700, .kind = FaultKind::kLeave, .node = "ps:1"}}));
  CHECK(verdict.broken == "");
  CHECK(verdict.moves == 1);
  CHECK(verdict.commits == 250);
}

TEST_CASE("a lost server that does not come back in time is gone on without", "[sim]") {
  // The machine comes back after 8 s; without it the job ends before.
  const Verdict verdict =
      Simulate(ThreeServers({{.at_ms = 500, .kind = FaultKind::kKill, .node = "ps:2", .for_ms = 8000}}));
  CHECK(verdict.broken == "");
  CHECK(verdict.commits > 250);
  CHECK(verdict.at_ms < 8000);
}

TEST_CASE("without faults a job commits every sample and nobody is fenced", "[sim]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Scenario scenario = MakeScenario(seed);
    scenario.faults.clear();
    const Verdict verdict = Simulate(scenario);
    INFO("seed " << seed << ": " << verdict.broken);
    CHECK(verdict.broken.empty());
    CHECK(verdict.starts == 1);
    CHECK(verdict.fenced == 0);
  }
}

}  // namespace evenkeel::sim
