// Every sample counts once an epoch, in every mode, while workers come and go and streams break.
#include <atomic>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "scenarios/cluster_harness.h"

namespace evenkeel::scenarios {
namespace {

void CheckThreeEpochs(const Ended& ended) {
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
  CHECK(ended.summary["status"] == "finished");
  CHECK(ended.summary["epochs"] == 3);
  CHECK(ended.summary["samples_per_epoch"] == nlohmann::json({kSamples, kSamples, kSamples}));
  CHECK(ended.summary["samples_trained"] == 3 * kSamples);
}

std::int64_t SamplesOf(const Ended& ended, const std::string& worker) {
  for (const auto& entry : ended.summary["workers"]) {
    if (entry["id"] == worker) return entry["samples"].get<std::int64_t>();
  }
  return 0;
}

const std::vector<std::vector<std::string>>& Modes() {
  static const std::vector<std::vector<std::string>> modes = {
      {"train.epochs=3", "train.sync.mode=bsp"},
      {"train.epochs=3", "train.sync.mode=bsp", "train.sync.backup_workers=1"},
      {"train.epochs=3", "train.sync.mode=asp", "train.schedule.learning_rate=0.01"},
      {"train.epochs=3", "train.sync.mode=ssp", "train.sync.staleness=2", "train.schedule.learning_rate=0.01"},
  };
  return modes;
}

TEST_CASE("every sample counts once an epoch in every mode", "[scenario]") {
  for (const auto& mode : Modes()) {
    INFO(mode[1] << " " << mode.back());
    TempFolder folder;
    CheckThreeEpochs(RunCluster({Mlp(mode), 3, 2, folder.path()}));
  }
}

TEST_CASE("a worker that leaves takes no sample with it", "[scenario]") {
  for (const auto& mode : Modes()) {
    INFO(mode[1] << " " << mode.back());
    TempFolder folder;
    const Ended ended =
        RunCluster({Mlp(mode), 3, 2, folder.path(), [](Cluster& cluster, int worker, std::int64_t read) {
                      if (worker == 1 && read == 50) cluster.StopMember("worker:1", "the machine is wanted");
                    }});
    CheckThreeEpochs(ended);
    CHECK(SamplesOf(ended, "worker:1") < kSamples);
    // It finished what it had begun: no step was smaller for it. Backup workers drop updates by themselves.
    if (mode.back() != "train.sync.backup_workers=1") CHECK(ended.summary["dropped_updates"] == 0);
    CHECK(SamplesOf(ended, "worker:0") + SamplesOf(ended, "worker:1") + SamplesOf(ended, "worker:2") == 3 * kSamples);
  }
}

TEST_CASE("a worker that joins in the middle trains along", "[scenario]") {
  TempFolder folder;
  std::atomic<bool> joiner_reads{false};
  // Worker 0 reads no further until the joiner does: in asp nobody waits for it.
  const Ended ended = RunCluster({Mlp({"train.epochs=3", "train.sync.mode=asp", "train.schedule.learning_rate=0.01"}),
                                  1, 2, folder.path(), [&](Cluster& cluster, int worker, std::int64_t read) {
                                    if (worker == 7) {
                                      joiner_reads = true;
                                      joiner_reads.notify_all();
                                    } else if (read == 150) {
                                      cluster.AddWorker(7);
                                      joiner_reads.wait(false);
                                    }
                                  }});
  CheckThreeEpochs(ended);
  CHECK(SamplesOf(ended, "worker:7") > 0);
}

TEST_CASE("broken streams cost neither samples nor bits", "[scenario]") {
  const Experiment mlp = Mlp({"train.epochs=3"});
  TempFolder quiet, broken;
  const Ended undisturbed = RunCluster({mlp, 2, 2, quiet.path()});
  CheckThreeEpochs(undisturbed);
  const Ended ended = RunCluster({mlp, 2, 2, broken.path(), [](Cluster& cluster, int worker, std::int64_t read) {
                                    if (worker == 0 && read % 400 == 130) cluster.BreakStreams();
                                  }});
  CheckThreeEpochs(ended);
  CHECK(ended.summary["parameters_sha256"] == undisturbed.summary["parameters_sha256"]);
}

TEST_CASE("a step that is summed as it comes loses no bit to broken streams", "[scenario]") {
  const Experiment wide = WideMlp({"train.epochs=1", "batching.mode=off", "batching.min_batch_size=1"});
  TempFolder quiet, broken;
  const Ended undisturbed = RunCluster({wide, 12, 1, quiet.path()});
  INFO(undisturbed.ToString());
  REQUIRE(undisturbed.all_ok());
  const Ended ended = RunCluster({wide, 12, 1, broken.path(), [](Cluster& cluster, int worker, std::int64_t read) {
                                    if (worker == 0 && read % 20 == 13) cluster.BreakStreams();
                                  }});
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
  CHECK(ended.summary["samples_trained"] == kSamples);
  CHECK(ended.summary["dropped_updates"] == 0);
  CHECK(ended.summary["parameters_sha256"] == undisturbed.summary["parameters_sha256"]);
}

}  // namespace
}  // namespace evenkeel::scenarios
