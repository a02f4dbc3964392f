// Same seed, same bits; other numbers of workers and servers, the same result within rounding; and one snapshot
// restores onto any of them.
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "scenarios/cluster_harness.h"

namespace evenkeel::scenarios {
namespace {

struct Run {
  std::string sha256;
  std::vector<float> parameters;
};

Run RunToEnd(const Experiment& experiment, int workers, int servers) {
  TempFolder folder;
  const Ended ended = RunCluster({experiment, workers, servers, folder.path()});
  INFO(workers << " workers, " << servers << " servers\n" << ended.ToString());
  REQUIRE(ended.all_ok());
  REQUIRE(ended.summary["status"] == "finished");
  return {ended.summary["parameters_sha256"].get<std::string>(), FinalParameters(folder.path())};
}

// Stops the chief while worker 0 reads on: the step in flight is dropped, and a checkpoint in the middle of an epoch is
// left.
void RunAndStop(const Experiment& experiment, int workers, int servers, const std::string& model_dir,
                std::int64_t samples_read) {
  const Ended ended = RunCluster(
      {experiment, workers, servers, model_dir, [samples_read](Cluster& cluster, int worker, std::int64_t read) {
         if (worker != 0 || read != samples_read) return;
         cluster.StopChief("the test says so");
         cluster.AwaitChief();
       }});
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
  REQUIRE(ended.summary["status"] == "stopped");
  REQUIRE(ended.summary["samples_trained"] > 0);
  REQUIRE(ended.summary["samples_trained"] < 2 * kSamples);
}

TEST_CASE("a bsp run repeats bit for bit with the same membership", "[scenario]") {
  const auto servers = GENERATE(1, 2);
  const Experiment mlp = Mlp({});
  const Run first = RunToEnd(mlp, 2, servers);
  CHECK(first.sha256.size() == 64);
  CHECK(RunToEnd(mlp, 2, servers).sha256 == first.sha256);
  CHECK(RunToEnd(Mlp({"train.seed=8"}), 2, servers).sha256 != first.sha256);
}

TEST_CASE("a bsp run with batch norm repeats bit for bit with the same membership", "[scenario]") {
  const Experiment experiment = MlpWithBatchNorm({});
  CHECK(RunToEnd(experiment, 2, 2).sha256 == RunToEnd(experiment, 2, 2).sha256);
}

TEST_CASE("the numbers of workers and servers change the result by rounding only", "[scenario]") {
  const Experiment mlp = Mlp({});
  const Run one = RunToEnd(mlp, 1, 1);
  for (int workers : {1, 2, 4}) {
    std::string of_these_workers;
    for (int servers : {1, 2, 3}) {
      const Run other = RunToEnd(mlp, workers, servers);
      INFO(workers << " workers, " << servers << " servers");
      CHECK(RelativeDifference(other.parameters, one.parameters) < 1e-3);
      // Each server sums its stripes in rank order, so their number changes no bit at all.
      if (of_these_workers.empty()) of_these_workers = other.sha256;
      CHECK(other.sha256 == of_these_workers);
    }
  }
}

TEST_CASE("servers that own nothing take part", "[scenario]") {
  // 96 floats in two buckets cannot be spread over 8 servers in pieces of 16.
  const Experiment small = Mlp({"model.layers[0].dense.units=1", "train.bucket_bytes=4096"});
  CHECK(RunToEnd(small, 2, 8).sha256 == RunToEnd(small, 2, 1).sha256);
}

TEST_CASE("a stopped job resumes to the same bits as one that was never stopped", "[scenario]") {
  const Experiment mlp = Mlp({});
  TempFolder folder;
  RunAndStop(mlp, 2, 2, folder.path(), 260);
  const Ended resumed = RunCluster({mlp, 2, 2, folder.path()});
  INFO(resumed.ToString());
  REQUIRE(resumed.all_ok());
  CHECK(resumed.summary["status"] == "finished");
  CHECK(resumed.summary["samples_per_epoch"] == nlohmann::json({kSamples, kSamples}));
  CHECK(resumed.summary["samples_trained"] == 2 * kSamples);
  CHECK(resumed.summary["samples_rolled_back"] == 0);
  CHECK(resumed.summary["parameters_sha256"] == RunToEnd(mlp, 2, 2).sha256);
}

TEST_CASE("a checkpoint restores onto other numbers of workers and servers", "[scenario]") {
  const Experiment mlp = Mlp({});
  const Run whole = RunToEnd(mlp, 2, 2);
  for (auto [workers, servers] : {std::pair(3, 3), std::pair(1, 1)}) {
    TempFolder folder;
    RunAndStop(mlp, 2, 2, folder.path(), 400);
    const Ended resumed = RunCluster({mlp, workers, servers, folder.path()});
    INFO(resumed.ToString());
    REQUIRE(resumed.all_ok());
    CHECK(resumed.summary["samples_per_epoch"] == nlohmann::json({kSamples, kSamples}));
    CHECK(RelativeDifference(FinalParameters(folder.path()), whole.parameters) < 1e-3);
  }
}

}  // namespace
}  // namespace evenkeel::scenarios
