// A chief that cuts batches by step times: small epochs, members that come and go, a chief that was held up.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/match.h"
#include "unit/chief/fake_cluster.h"

namespace evenkeel {

TEST_CASE("batches follow step times where an epoch has fewer samples than the global batch", "[chief]") {
  FakeClusterOptions options;
  options.samples = 300;
  options.overrides = "train.epochs=60 train.global_batch_size=600 batching.mode=model batching.probe_ms=0";
  FakeCluster cluster(options);
  cluster.SetSpeed(0, 0.001);
  cluster.SetSpeed(1, 0.002);
  cluster.SetSpeed(2, 0.004);
  REQUIRE(cluster.Run());
  std::int64_t samples = 0;
  for (const CommitRecord& commit : cluster.commits()) samples += commit.decision.samples;
  CHECK(samples == 60 * 300);
  const Decision last = cluster.commits().back().decision;
  REQUIRE(last.updates.size() == 3);
  CHECK(TotalSize(last.updates[0].positions) == Approx(171).margin(8));
  CHECK(TotalSize(last.updates[2].positions) == Approx(43).margin(8));
}

TEST_CASE("with unequal workers that come and go each step is whole, and soon cut right", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.timed = true;
  options.overrides = "train.global_batch_size=600 batching.mode=model batching.probe_ms=0";
  FakeCluster cluster(options);
  cluster.SetSpeed(0, 0.001);
  cluster.SetSpeed(1, 0.002);
  cluster.SetSpeed(2, 0.004);
  const auto run = [&cluster](std::size_t more) {
    const std::size_t target = cluster.commits().size() + more;
    cluster.RunUntil([&] { return cluster.end() || cluster.commits().size() >= target; });
  };
  run(40);
  const int fourth = cluster.StartWorker("worker:3");
  cluster.SetSpeed(fourth, 0.001);
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 4; });
  run(3);
  // 600 cut by 4 : 2 : 1 : 4.
  CHECK(TotalSize(cluster.commits().back().decision.updates[3].positions) == Approx(218).margin(20));
  cluster.LeaveWorker(0);
  cluster.RunUntil([&] { return cluster.commits().back().decision.updates.size() == 3; });
  run(3);
  CHECK(TotalSize(cluster.commits().back().decision.updates[0].positions) == Approx(171).margin(16));
  run(20);
  const auto commits = cluster.commits();
  const auto small =
      std::count_if(commits.begin(), commits.end(), [](const auto& commit) { return commit.decision.samples != 600; });
  CHECK(small <= 1);  // the step in flight when the first worker left with its samples
}

TEST_CASE("time in which the chief was held up is no step time", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.timed = true;
  options.overrides = "train.global_batch_size=600 batching.mode=model batching.probe_ms=0";
  FakeCluster cluster(options);
  for (int i = 0; i < 3; ++i) cluster.SetSpeed(i, 0.001);
  cluster.RunUntil([&] { return cluster.commits().size() == 4; });
  cluster.HoldUpChief(std::chrono::seconds(20));
  cluster.RunUntil([&] { return cluster.commits().size() == 40; });
  for (const CommitRecord& commit : cluster.commits()) {
    for (const CommittedUpdate& update : commit.decision.updates) {
      CHECK(TotalSize(update.positions) == Approx(200).margin(10));
    }
  }
  for (const std::string& line : cluster.lines()) CHECK_FALSE(absl::StrContains(line, "times slower"));
}

// So does one that a restarted chief has taken up.
TEST_CASE("what memory holds counts as soon as a worker says that it is ready again", "[chief]") {
  FakeClusterOptions options;
  options.samples = 100000;
  options.overrides =
      "train.global_batch_size=600 batching.mode=model batching.probe_ms=0 membership.renew_ms=5000 "
      "membership.lease_ms=60000";
  FakeCluster cluster(options);
  for (int i = 0; i < 3; ++i) cluster.SetSpeed(i, 0.001);
  cluster.RunUntil([&] { return cluster.commits().size() == 10; });
  cluster.Deliver(1, Message{cluster.EnvelopeOf(1), Ready{.memory_samples = 100}});
  const std::size_t before = cluster.commits().size();
  cluster.RunUntil([&] { return cluster.commits().size() == before + 4; });
  CHECK(TotalSize(cluster.commits().back().decision.updates[1].positions) <= 100);
}

}  // namespace evenkeel
