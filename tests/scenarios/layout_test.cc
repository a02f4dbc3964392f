// Servers leave and are added while training goes on: no sample is lost, and no bit changes.
#include <atomic>
#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "scenarios/cluster_harness.h"

namespace evenkeel::scenarios {
namespace {

void CheckWhole(const Ended& ended) {
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
  CHECK(ended.summary["status"] == "finished");
  CHECK(ended.summary["samples_per_epoch"] == nlohmann::json({kSamples, kSamples, kSamples, kSamples}));
  CHECK(ended.summary["samples_rolled_back"] == 0);
}

std::vector<std::string> With(std::vector<std::string> more) {
  more.insert(more.end(), {"train.epochs=4", "train.optimizer={\"adam\": {}}", "train.schedule.learning_rate=0.01"});
  return more;
}

// ps:1 leaves early on; the job waits with its reading until it is gone. Then ps:2 and ps:3 come, and three are wanted.
struct Moves {
  std::atomic<bool> begun{false};
  void operator()(Cluster& cluster, int worker, std::int64_t read) {
    if (worker != 0) return;
    if (read == 150) cluster.StopMember("ps:1", "the machine is wanted");
    if (read != 700) return;
    cluster.AddServer(2);
    cluster.AddServer(3);
    answer = cluster.ScaleServers(3);
  }
  std::string answer;
};

TEST_CASE("servers that leave and come change no bit of a bsp run", "[scenario]") {
  const Experiment mlp = Mlp(With({}));
  TempFolder quiet, moved;
  const Ended undisturbed = RunCluster({mlp, 2, 2, quiet.path()});
  CheckWhole(undisturbed);
  Moves moves;
  const Ended ended = RunCluster({mlp, 2, 2, moved.path(), [&](Cluster& cluster, int worker, std::int64_t read) {
                                    moves(cluster, worker, read);
                                  }});
  INFO(ended.ToString());
  CheckWhole(ended);
  CHECK(absl::StrContains(moves.answer, "the parameters move to 3 servers"));
  CHECK(ended.summary["parameters_sha256"] == undisturbed.summary["parameters_sha256"]);
}

TEST_CASE("servers that leave and come cost no sample in asp and ssp, also while streams break", "[scenario]") {
  for (const auto& mode : {std::vector<std::string>{"train.sync.mode=asp"},
                           std::vector<std::string>{"train.sync.mode=ssp", "train.sync.staleness=2"}}) {
    INFO(mode[0]);
    TempFolder folder;
    Moves moves;
    CheckWhole(RunCluster({Mlp(With(mode)), 3, 2, folder.path(), [&](Cluster& cluster, int worker, std::int64_t read) {
                             moves(cluster, worker, read);
                             if (worker == 1 && read % 100 == 60) cluster.BreakStreams();
                           }}));
  }
}

}  // namespace
}  // namespace evenkeel::scenarios
