// A chief whose global batch follows the noise that servers measure, and who sends away whom no batch can help.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "unit/chief/fake_cluster.h"

namespace evenkeel {
namespace {

const char* kFollows =
    "train.global_batch_size=60 train.schedule.learning_rate=0.5 batching.mode=off batching.min_batch_size=1 "
    "batching.gradnorm_window=4 batching.global.noise_scale.max=1000 "
    "batching.global.noise_scale.learning_rate=square_root";

bool Said(const FakeCluster& cluster, const std::string& text) {
  return std::any_of(cluster.lines().begin(), cluster.lines().end(),
                     [&](const std::string& line) { return absl::StrContains(line, text); });
}

std::vector<std::int64_t> Sizes(const FakeCluster& cluster) {
  std::vector<std::int64_t> sizes;
  for (const CommitRecord& commit : cluster.commits()) sizes.push_back(commit.decision.samples);
  return sizes;
}

}  // namespace

TEST_CASE("a chief's global batch grows to the noise scale, and the learning rate with it", "[chief]") {
  FakeClusterOptions options;
  options.samples = 6000;
  options.seed = GENERATE(1u, 2u);
  options.duplicate = 0.1;
  options.overrides = kFollows;
  FakeCluster cluster(options);
  cluster.SetNoiseScale(200);
  REQUIRE(cluster.Run());
  CHECK(cluster.end()->status.ok());
  std::vector<std::int64_t> sizes = Sizes(cluster);
  CHECK(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == 6000);
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    INFO("commit " << i + 1);
    CHECK((sizes[i] == 60 || sizes[i] == 120 || sizes[i] == 200));
    CHECK(sizes[i + 1] >= (i + 2 < sizes.size() ? sizes[i] : 0));
    CHECK(cluster.commits()[i].decision.learning_rate == Approx(0.5 * std::sqrt(static_cast<double>(sizes[i]) / 60)));
  }
  // Four commits are measured when the fifth is decided, four more when the ninth is.
  CHECK(sizes[4] == 60);
  CHECK(sizes[5] == 120);
  CHECK(sizes[8] == 120);
  CHECK(sizes[9] == 200);
  CHECK(Said(cluster, "the global batch is 120 samples now, not 60: the gradient noise scale is 200"));
  CHECK(absl::StrContains(cluster.chief().StatusJson(cluster.now()), "\"noise_scale\":200"));
}

TEST_CASE("the order in which messages come changes nothing of a following global batch", "[chief]") {
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    FakeClusterOptions options;
    options.samples = 3000;
    options.seed = seed;
    options.overrides = kFollows;
    FakeCluster cluster(options);
    cluster.SetNoiseScale(170);
    REQUIRE(cluster.Run());
    std::vector<std::int64_t> sizes = Sizes(cluster);
    if (seed == 1) hashes.assign(sizes.begin(), sizes.end());
    CHECK(std::equal(sizes.begin(), sizes.end(), hashes.begin(), hashes.end()));
  }
}

TEST_CASE("a resumed job goes on with the global batch of its checkpoint", "[chief]") {
  FakeClusterOptions options;
  options.samples = 6000;
  options.overrides = std::string(kFollows) + " checkpoint.every_commits=12";
  FakeCluster first(options);
  first.SetNoiseScale(200);
  first.RunUntil([&] { return first.manifests().size() == 2; });
  REQUIRE(Sizes(first)[11] == 200);
  options.resume = first.manifests().back();
  FakeCluster second(options);
  second.SetNoiseScale(200);
  second.RunUntil([&] { return second.commits().size() == 2; });
  CHECK(Sizes(second)[0] == 200);
}

TEST_CASE("a job that is resumed from any checkpoint changes its global batch at the same commits", "[chief]") {
  FakeClusterOptions options;
  options.samples = 6000;
  options.overrides = std::string(kFollows) + " checkpoint.every_commits=1";
  FakeCluster first(options);
  first.SetNoiseScale(900);
  REQUIRE(first.Run());
  const std::vector<std::int64_t> sizes = Sizes(first);
  REQUIRE(sizes.size() > 14);
  for (const Manifest& manifest : first.manifests()) {
    const auto done = static_cast<std::ptrdiff_t>(manifest.version.commit.value());
    if (done == 0 || done > 12) continue;
    options.resume = manifest;
    FakeCluster second(options);
    second.SetNoiseScale(900);
    REQUIRE(second.Run());
    INFO("from commit " << done);
    CHECK(Sizes(second) == std::vector<std::int64_t>(sizes.begin() + done, sizes.end()));
  }
}

TEST_CASE("a following global batch that the workers cannot take any more changes at once", "[chief]") {
  FakeClusterOptions options;
  options.workers = 6;
  options.samples = 60000;
  options.overrides = std::string(kFollows) + " batching.max_batch_size=40";
  FakeCluster cluster(options);
  cluster.SetNoiseScale(900);
  cluster.RunUntil([&] { return !cluster.commits().empty() && Sizes(cluster).back() == 240; });
  REQUIRE(Sizes(cluster).back() == 240);
  cluster.LeaveWorker(0);  // by less than the estimate would have to change
  cluster.RunUntil([&] { return Sizes(cluster).back() == 200; });
  CHECK(Sizes(cluster).back() == 200);
  CHECK(Said(cluster, "the global batch is 200 samples now, not 240: the workers take "));
}

TEST_CASE("a job that is taken back to its start has its first global batch again", "[chief]") {
  FakeClusterOptions options;
  options.samples = 6000;
  options.overrides = std::string(kFollows) + " membership.lease_ms=2000 membership.renew_ms=500";
  FakeCluster cluster(options);
  cluster.FailSnapshots(true);
  cluster.SetNoiseScale(200);
  cluster.RunUntil([&] { return !cluster.commits().empty() && Sizes(cluster).back() == 200; });
  REQUIRE(Sizes(cluster).back() == 200);
  cluster.KillServer(0);
  cluster.RunUntil([&] { return cluster.rollbacks() == 1; });
  cluster.StartServer(0);
  cluster.RunUntil([&] { return cluster.surviving_commits().size() == 6; });
  const std::vector<CommitRecord> commits = cluster.surviving_commits();
  REQUIRE(commits.size() == 6);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(commits[i].decision.samples == 60);
    CHECK(commits[i].decision.learning_rate == Approx(0.5));
  }
}

TEST_CASE("without a window nothing is measured and nothing follows", "[chief]") {
  FakeClusterOptions options;
  options.overrides = "train.global_batch_size=60";
  FakeCluster cluster(options);
  cluster.SetNoiseScale(200);
  REQUIRE(cluster.Run());
  CHECK_FALSE(cluster.measures());
  CHECK(Sizes(cluster)[10] == 60);
}

TEST_CASE("a worker that the least batch cannot help is asked to leave, by choice", "[chief]") {
  const bool evicts = GENERATE(true, false);
  const bool needed = GENERATE(true, false);
  FakeClusterOptions options;
  options.workers = 4;
  options.samples = 40000;
  options.overrides = "train.global_batch_size=400 batching.mode=model batching.min_batch_size=16 batching.probe_ms=0";
  if (evicts) options.overrides += " batching.evict_slower_than=3";
  if (needed) options.overrides += " membership.workers_min=4";
  FakeCluster cluster(options);
  for (int i = 0; i < 4; ++i) cluster.SetSpeed(i, i == 2 ? 0.5 : 0.001);  // 8 s against some 0.13
  cluster.RunUntil([&] { return cluster.commits().size() == 60; });
  CHECK(Said(cluster, "batching.evict_slower_than: a step of 16 samples") == (evicts && !needed));
  const std::vector<CommittedUpdate> last = cluster.commits().back().decision.updates;
  CHECK(last.size() == (evicts && !needed ? 3 : 4));
  CHECK(cluster.commits().back().decision.samples == 400);
}

// All have the least batch. Nobody waits for anybody, so that others commit often while one has a long step.
TEST_CASE("a worker is sent away for many slow steps of its own, not for one", "[chief]") {
  const bool for_good = GENERATE(true, false);
  FakeClusterOptions options;
  options.workers = 12;
  options.samples = 1000000;
  options.timed = true;
  options.overrides =
      "train.sync.mode=asp train.global_batch_size=192 batching.mode=model batching.min_batch_size=16 "
      "batching.probe_ms=0 batching.evict_slower_than=3";
  FakeCluster cluster(options);
  for (int i = 0; i < 12; ++i) cluster.SetSpeed(i, i == 7 ? 0.008 : 0.001);
  cluster.RunUntil([&] { return cluster.commits().size() == 30; });
  if (!for_good) cluster.SetSpeed(7, 0.001);
  const TimePoint until = cluster.now() + std::chrono::seconds(6);
  cluster.RunUntil([&] { return cluster.now() >= until; });
  CHECK(Said(cluster, "batching.evict_slower_than: a step of 16 samples") == for_good);
}

TEST_CASE("with the staleness strategy a slow worker's updates are no staler than the others'", "[chief]") {
  const auto spread = [](const std::string& more) {
    FakeClusterOptions options;
    options.workers = 4;
    options.servers = 1;
    options.samples = 400000;
    options.timed = true;
    options.overrides = "train.sync.mode=asp train.global_batch_size=400 batching.min_batch_size=8 " + more;
    FakeCluster cluster(options);
    for (int i = 0; i < 4; ++i) cluster.SetSpeed(i, i == 0 ? 0.005 : 0.001);
    cluster.RunUntil([&] { return cluster.commits().size() == 400; });
    REQUIRE(cluster.commits().size() >= 400);
    std::map<Incarnation, std::pair<double, int>> staleness;  // sum and number of the last half's
    const auto commits = cluster.commits();
    for (std::size_t i = 200; i < 400; ++i) {
      const CommittedUpdate& update = commits[i].decision.updates[0];
      auto& [sum, count] = staleness[update.update.incarnation];
      sum += static_cast<double>(i) - static_cast<double>(update.computed_on[0].commit.value());
      ++count;
    }
    double least = 1e9, most = 0;
    for (const auto& [worker, value] : staleness) {
      least = std::min(least, value.first / value.second);
      most = std::max(most, value.first / value.second);
    }
    return most - least;
  };
  const double off = spread("batching.mode=off");
  const double stale = spread("batching.mode=model batching.asp_adjust_strategy=staleness batching.probe_ms=0");
  const double timed = spread("batching.mode=model batching.asp_adjust_strategy=iteration_time batching.probe_ms=0");
  CHECK(off > 5);  // the slow one misses some 13 commits, the others about 3
  CHECK(stale < off / 4);
  CHECK(timed < off / 4);
}

}  // namespace evenkeel
