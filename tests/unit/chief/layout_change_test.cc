// Which servers share the parameters: lost ones that do not come back, ones that leave, ones that are added.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "fake_cluster.h"

namespace evenkeel {
namespace {

FakeClusterOptions Options(const std::string& more) {
  FakeClusterOptions options;
  options.samples = 6000;
  options.overrides =
      "train.epochs=2 checkpoint.every_commits=7 membership.lease_ms=2000 membership.renew_ms=500 "
      "membership.ps_replacement_timeout_ms=3000 " +
      more;
  return options;
}

std::vector<std::string> Names(const LayoutRecord& record) {
  std::vector<std::string> names;
  for (const ServerAddress& server : record.servers) names.push_back(server.name);
  return names;
}

void CheckExact(FakeCluster& cluster) {
  REQUIRE(cluster.end()->status.ok());
  REQUIRE(cluster.end()->summary.status == "finished");
  REQUIRE(cluster.end()->summary.samples_per_epoch == std::vector<std::int64_t>{6000, 6000});
  std::map<Epoch, std::int64_t> spent;
  for (const CommitRecord& record : cluster.surviving_commits()) {
    for (const CommittedUpdate& update : record.decision.updates) spent[update.epoch] += TotalSize(update.positions);
  }
  for (const auto& [epoch, samples] : spent) REQUIRE(samples == 6000);
}

std::ptrdiff_t MovesGivenUp(const FakeCluster& cluster) {
  return std::count_if(cluster.lines().begin(), cluster.lines().end(),
                       [](const std::string& line) { return absl::StrContains(line, " is given up: "); });
}

const std::string kModes[] = {"train.sync.mode=bsp", "train.sync.mode=asp", "train.sync.mode=ssp"};

}  // namespace

TEST_CASE("a lost server that does not come back in time is gone on without", "[chief]") {
  FakeCluster cluster(Options(kModes[GENERATE(0, 1, 2)]));
  cluster.RunUntil([&] { return cluster.commits().size() >= 9; });
  cluster.KillServer(0);
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.rollbacks() == 1);
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:1"});
  REQUIRE(cluster.layouts().back().layout == LayoutNumber(2));
  REQUIRE(cluster.manifests().back().parts.size() == 1);
}

TEST_CASE("a job that goes on with fewer servers than the cluster names says so, and shares on order", "[chief]") {
  FakeClusterOptions options = Options(kModes[GENERATE(0, 1, 2)]);
  options.servers = 1;
  FakeCluster first(options);
  first.RunUntil([&] { return first.manifests().size() == 2; });
  options.resume = first.manifests().back();
  options.former_layout = first.layouts().back();
  options.servers = 2;
  FakeCluster cluster(options);
  const std::vector<std::string> said = cluster.lines();
  REQUIRE(std::any_of(said.begin(), said.end(), [](const std::string& line) {
    return absl::StrContains(line, "goes on with its 1 server; the cluster names 2");
  }));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:0"});
  REQUIRE(cluster.Order(Scale{2}).accepted);
  REQUIRE(cluster.Run());
  REQUIRE(cluster.end()->summary.samples_per_epoch == std::vector<std::int64_t>{6000, 6000});
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:0", "ps:1"});
  REQUIRE(cluster.rollbacks() == 1);  // of the resume itself
}

TEST_CASE("a chief that is held up while it waits for a lost server has not waited", "[chief]") {
  FakeCluster cluster(Options("membership.ps_timeout_ms=10000"));
  cluster.RunUntil([&] { return cluster.commits().size() >= 9; });
  cluster.KillServer(0);
  cluster.RunUntil([&] { return cluster.rollbacks() == 1; });
  cluster.HoldUpChief(std::chrono::seconds(30));
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:1"});
}

TEST_CASE("a server that comes too late stands by, and takes the place of the next one that is lost", "[chief]") {
  FakeCluster cluster(Options(""));
  cluster.RunUntil([&] { return cluster.commits().size() >= 9; });
  cluster.KillServer(0);
  cluster.RunUntil([&] { return cluster.layouts().back().servers.size() == 1; });
  cluster.StartServer(0);
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() >= before + 9; });
  cluster.KillServer(1);
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.rollbacks() == 2);
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:0"});
}

TEST_CASE("a server's stripes move to the others between two commits, and it is released", "[chief]") {
  FakeClusterOptions options = Options(kModes[GENERATE(0, 1, 2)]);
  options.servers = 3;
  options.duplicate = GENERATE(0.0, 0.3);
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() >= 9; });
  cluster.AskServerToLeave(1);
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.ServerReleased(1));
  REQUIRE(cluster.rollbacks() == 0);
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:0", "ps:2"});
  REQUIRE(cluster.layouts().back().generation == Generation(1));
  REQUIRE(cluster.surviving_commits().back().decision.updates.front().computed_on.size() == 2);
}

TEST_CASE("the servers become more as ordered once enough have joined, and fewer", "[chief]") {
  FakeCluster cluster(Options(kModes[GENERATE(0, 1, 2)]));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  REQUIRE(absl::StrContains(cluster.Order(Scale{3}).message, "once 1 more"));
  cluster.RunUntil([&] { return cluster.commits().size() >= 10; });
  REQUIRE(cluster.layouts().size() == 1);
  cluster.StartServer(2);
  cluster.RunUntil([&] { return cluster.layouts().size() == 2; });
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:0", "ps:1", "ps:2"});
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() >= before + 9; });
  REQUIRE(cluster.Order(Scale{1}).accepted);
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.rollbacks() == 0);
  REQUIRE(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:0"});
  REQUIRE((cluster.ServerReleased(1) && cluster.ServerReleased(2)));
}

TEST_CASE("a move that a server cannot prepare or fill is given up and tried again; training goes on meanwhile",
          "[chief]") {
  FakeCluster cluster(Options(""));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  const bool prepare = GENERATE(true, false);
  prepare ? cluster.SetPrepareError("no memory") : cluster.SetFillError("ps:1 is gone");
  REQUIRE(cluster.Order(Drain{"ps:0"}).accepted);
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() >= before + 9; });
  REQUIRE(cluster.layouts().size() == 1);
  cluster.SetPrepareError("");
  cluster.SetFillError("");
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.rollbacks() == 0);
}

TEST_CASE("a move that never succeeds is tried less and less often, until another order", "[chief]") {
  FakeClusterOptions options = Options("train.epochs=20");
  options.timed = true;
  FakeCluster cluster(options);
  for (int i = 0; i < options.workers; ++i) cluster.SetSpeed(i, 0, 0.5);
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.SetFillError("the link is too slow");
  REQUIRE(cluster.Order(Drain{"ps:0"}).accepted);
  const TimePoint ordered = cluster.now();
  cluster.RunUntil([&] { return cluster.now() - ordered > std::chrono::seconds(60); });
  CHECK(MovesGivenUp(cluster) == 5);  // after 0, 2, 6, 14 and 30 s
  REQUIRE(cluster.Order(Scale{1}).accepted);
  cluster.RunUntil([&] { return cluster.now() - ordered > std::chrono::seconds(62); });
  CHECK(MovesGivenUp(cluster) == 6);
}

TEST_CASE("an order calls off a move whose places are being filled", "[chief]") {
  FakeCluster cluster(Options(""));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  REQUIRE(cluster.Order(Scale{3}).accepted);
  cluster.HoldFilled(true);
  cluster.StartServer(2);
  const auto filling = [&] {
    return absl::StrContains(cluster.chief().StatusJson(cluster.now()), "ps:2's new stripes");
  };
  cluster.RunUntil(filling);
  REQUIRE(filling());
  const std::size_t before = cluster.commits().size();
  REQUIRE(cluster.Order(Scale{2}).accepted);
  cluster.RunUntil([&, at = cluster.now()] {
    return cluster.commits().size() > before + 2 || cluster.now() - at > std::chrono::seconds(3);
  });
  CHECK(cluster.commits().size() > before + 2);
  cluster.ReleaseFilled();
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  CHECK(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:0", "ps:1"});
}

TEST_CASE("a move that a newcomer's end makes fail is tried less and less often, too", "[chief]") {
  FakeClusterOptions options = Options("train.epochs=20");
  options.timed = true;
  FakeCluster cluster(options);
  for (int i = 0; i < options.workers; ++i) cluster.SetSpeed(i, 0, 0.5);
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.HoldFilled(false);
  REQUIRE(cluster.Order(Scale{3}).accepted);
  const TimePoint ordered = cluster.now();
  std::ptrdiff_t deaths = 0;
  cluster.StartServer(2);
  while (cluster.now() - ordered < std::chrono::seconds(60)) {
    cluster.StepOnce();
    if (MovesGivenUp(cluster) < deaths) continue;
    if (!absl::StrContains(cluster.chief().StatusJson(cluster.now()), "ps:2's new stripes")) continue;
    cluster.DisconnectServer(2);  // killed by the kernel, say; another process takes its name
    cluster.StartServer(2);
    ++deaths;
  }
  CHECK(deaths == 5);  // after 0, 2, 6, 14 and 30 s
}

TEST_CASE("a place may take any time to fill as long as more of it comes", "[chief]") {
  const bool comes = GENERATE(true, false);
  FakeCluster cluster(Options(""));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.HoldFilled(comes);
  REQUIRE(cluster.Order(Drain{"ps:0"}).accepted);
  const TimePoint ordered = cluster.now();
  cluster.RunUntil([&] { return cluster.now() - ordered > std::chrono::seconds(20); });  // of 3 without a piece
  const bool given_up = std::any_of(cluster.lines().begin(), cluster.lines().end(), [](const std::string& line) {
    return absl::StrContains(line, "is given up: waited 3 s for ps:1");
  });
  CHECK(given_up == !comes);
  cluster.ReleaseFilled();
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  if (comes) CHECK(Names(cluster.layouts().back()) == std::vector<std::string>{"ps:1"});
}

TEST_CASE("training and checkpoints go on while servers prepare for another layout", "[chief]") {
  FakeCluster cluster(Options("membership.ps_replacement_timeout_ms=50000 " + kModes[GENERATE(0, 1, 2)]));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.HoldPrepared();
  REQUIRE(cluster.Order(Drain{"ps:0"}).accepted);
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() >= before + 20; });
  REQUIRE(cluster.layouts().size() == 1);
  REQUIRE(cluster.manifests().size() >= 2);
  cluster.ReleasePrepared();
  cluster.RunUntil([&] { return cluster.layouts().size() == 2; });
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.rollbacks() == 0);
  REQUIRE(cluster.ServerReleased(0));
}

TEST_CASE("training goes on until the workers have streams to the servers of another layout", "[chief]") {
  FakeCluster cluster(Options("membership.ps_replacement_timeout_ms=50000 " + kModes[GENERATE(0, 1, 2)]));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.HoldConnectedAhead(0);
  REQUIRE(cluster.Order(Drain{"ps:0"}).accepted);
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() >= before + 20; });
  REQUIRE(cluster.layouts().size() == 1);
  SECTION("they have") { cluster.ReleaseConnectedAhead(0); }
  SECTION("one is gone") { cluster.DisconnectWorker(0); }
  cluster.RunUntil([&] { return cluster.layouts().size() == 2; });
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.rollbacks() == 0);
  REQUIRE(cluster.ServerReleased(0));
}

TEST_CASE("a worker without streams to the servers of another layout does not hold it up for ever", "[chief]") {
  FakeCluster cluster(Options("train.epochs=2000"));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.HoldConnectedAhead(0);
  const TimePoint ordered = cluster.now();
  REQUIRE(cluster.Order(Drain{"ps:0"}).accepted);
  cluster.RunUntil([&] { return cluster.layouts().size() == 2; });
  REQUIRE(cluster.layouts().size() == 2);
  CHECK(cluster.now() - ordered >= std::chrono::milliseconds(1500));
  CHECK(cluster.now() - ordered < std::chrono::milliseconds(2100));
  CHECK(std::count_if(cluster.lines().begin(), cluster.lines().end(), [](const std::string& line) {
          return absl::StrContains(line, "layout 2 does not wait any more for streams of worker:0");
        }) == 1);
}

TEST_CASE("the time that a move may take counts from when nothing is bound any more", "[chief]") {
  FakeClusterOptions options = Options("membership.ps_replacement_timeout_ms=3000");
  options.timed = true;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  for (int i = 0; i < options.workers; ++i) {
    cluster.SetSpeed(i, 0, 2.2);
    cluster.HoldConnectedAhead(i);
  }
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() > before + 1; });
  const TimePoint began = cluster.now();
  cluster.RunUntil([&] { return cluster.now() >= began + std::chrono::seconds(1); });
  REQUIRE(cluster.Order(Drain{"ps:0"}).accepted);
  // Another step begins in the 1.5 s that workers have, and ends more than 3 s after the order.
  cluster.RunUntil([&] { return cluster.layouts().size() == 2; });
  REQUIRE(cluster.layouts().size() == 2);
  CHECK(cluster.now() - began > std::chrono::seconds(4));
  CHECK(cluster.rollbacks() == 0);
  for (const std::string& line : cluster.lines()) CHECK_FALSE(absl::StrContains(line, "layout 2 is given up"));
}

TEST_CASE("a server that stands by and is no part of a move may leave meanwhile", "[chief]") {
  FakeCluster cluster(Options("membership.ps_replacement_timeout_ms=50000"));
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  const auto said = [&](const std::string& text) {
    return std::any_of(cluster.lines().begin(), cluster.lines().end(),
                       [&](const std::string& line) { return absl::StrContains(line, text); });
  };
  cluster.StartServer(2);
  cluster.StartServer(3);
  cluster.RunUntil([&] { return said("ps:2 joined") && said("ps:3 joined"); });
  cluster.HoldPrepared();
  REQUIRE(cluster.Order(Scale{3}).accepted);
  cluster.RunUntil([&] { return said("layout 2 is prepared"); });
  const int stands_by = said("prepared: ps:0, ps:1, ps:2") ? 3 : 2;
  cluster.AskServerToLeave(stands_by);
  cluster.RunUntil([&] { return cluster.ServerReleased(stands_by); });
  cluster.ReleasePrepared();
  cluster.RunUntil([&] { return cluster.layouts().size() == 2; });
  REQUIRE(cluster.layouts().back().servers.size() == 3);
  REQUIRE_FALSE(said("layout 2 is given up"));
  REQUIRE(cluster.Run());
  CheckExact(cluster);
}

TEST_CASE("an order that comes while a layout is prepared takes the former one's place", "[chief]") {
  FakeClusterOptions options = Options("membership.ps_replacement_timeout_ms=50000");
  options.servers = 3;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.HoldPrepared();
  REQUIRE(cluster.Order(Scale{1}).accepted);
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() >= before + 2; });
  const std::uint32_t second = GENERATE(2, 3);
  REQUIRE(cluster.Order(Scale{second}).accepted);
  cluster.ReleasePrepared();
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  for (const LayoutRecord& record : cluster.layouts()) REQUIRE(record.servers.size() != 1);
  REQUIRE(cluster.layouts().back().servers.size() == second);
}

TEST_CASE("the last server is not let go", "[chief]") {
  FakeClusterOptions options = Options("");
  options.servers = 1;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  const OrderReply reply = cluster.Order(Drain{"ps:0"});
  REQUIRE_FALSE(reply.accepted);
  REQUIRE(absl::StrContains(reply.message, "last server"));
  REQUIRE(cluster.Order(Drain{"ps:7"}).unknown);
  REQUIRE(cluster.Run());
  CheckExact(cluster);
}

TEST_CASE("the last server that is told to end goes after a checkpoint, and nothing is trained again", "[chief]") {
  FakeClusterOptions options = Options(kModes[GENERATE(0, 1, 2)]);
  options.servers = GENERATE(1, 2);
  options.duplicate = GENERATE(0.0, 0.3);
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  for (int i = 0; i < options.servers; ++i) cluster.AskServerToLeave(i);
  cluster.RunUntil([&] { return cluster.ServerReleased(0); });
  REQUIRE(cluster.manifests().back().version == cluster.commits().back().decision.version);
  cluster.RunUntil([&] { return cluster.rollbacks() == 1; });
  const std::size_t before = cluster.commits().size();
  for (int i = 0; i < options.servers; ++i) cluster.StartServer(i);
  REQUIRE(cluster.Run());
  CheckExact(cluster);
  REQUIRE(cluster.commits().size() == cluster.surviving_commits().size());
  REQUIRE(cluster.commits().size() > before);
  REQUIRE(cluster.end()->summary.samples_rolled_back == 0);
}

TEST_CASE("the last server that cannot write its checkpoint is asked again", "[chief]") {
  FakeClusterOptions options = Options("");
  options.servers = 1;
  FakeCluster cluster(options);
  cluster.RunUntil([&] { return cluster.commits().size() >= 5; });
  cluster.FailSnapshots(true);
  cluster.AskServerToLeave(0);
  const auto failures = [&] {
    return std::count_if(cluster.lines().begin(), cluster.lines().end(),
                         [](const std::string& line) { return absl::StrContains(line, "failed on ps:0"); });
  };
  cluster.RunUntil([&] { return failures() == 3; });
  REQUIRE(failures() == 3);
  REQUIRE_FALSE(cluster.ServerReleased(0));
  cluster.FailSnapshots(false);
  cluster.RunUntil([&] { return cluster.ServerReleased(0); });
  REQUIRE(cluster.manifests().back().version == cluster.commits().back().decision.version);
  // Nobody comes: the wait for that is no training.
  REQUIRE(cluster.Run());
  REQUIRE(cluster.end()->status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(cluster.end()->summary.wall_seconds < 30);
}

}  // namespace evenkeel
