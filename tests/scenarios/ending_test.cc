// How jobs end when they do not finish: everybody ends by itself, and says why.
#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scenarios/cluster_harness.h"

namespace evenkeel::scenarios {
namespace {

bool Says(const absl::Status& status, absl::string_view text) { return absl::StrContains(status.message(), text); }

TEST_CASE("values that are not finite fail the job, naming step, worker and layer", "[scenario]") {
  for (const auto& cause : {std::vector<std::string>{"input.train.custom.attributes.poison=500"},
                            std::vector<std::string>{"train.schedule.learning_rate=1e30"}}) {
    TempFolder folder;
    const Ended ended = RunCluster({Mlp(cause), 2, 2, folder.path()});
    INFO(ended.ToString());
    CHECK(ended.chief.code() == absl::StatusCode::kInternal);
    CHECK(Says(ended.chief, "step "));
    CHECK(Says(ended.chief, "worker:"));
    CHECK((Says(ended.chief, "layer 'loss'") || Says(ended.chief, "layer 'scores'") ||
           Says(ended.chief, "layer 'hidden'")));
    for (const auto& [name, status] : ended.members) {
      INFO(name);
      CHECK(status.code() == absl::StatusCode::kAborted);
    }
    CHECK(ended.summary["status"] == "failed");
  }
}

TEST_CASE("members give up a chief that is gone for good, naming it", "[scenario]") {
  TempFolder folder;
  Cluster cluster({Mlp({"train.epochs=50", "membership.chief_timeout_ms=5000", "membership.drain_ms=300"}), 2, 2,
                   folder.path(), [](Cluster& c, int worker, std::int64_t read) {
                     if (worker == 0 && read == 200) c.LoseChief();
                   }});
  cluster.AwaitMembers();
  cluster.StopChief("nobody is left");
  const Ended ended = cluster.Wait();
  INFO(ended.ToString());
  for (const auto& [name, status] : ended.members) {
    INFO(name);
    CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(Says(status, "chief"));
    CHECK(Says(status, "chief:1"));
  }
  // Nor does the chief wait for ever for servers that do not come back.
  CHECK(ended.chief.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(Says(ended.chief, "ps:"));
}

TEST_CASE("a chief that nobody joins ends, naming who is missing", "[scenario]") {
  TempFolder folder;
  const Ended ended = RunCluster({Mlp({"membership.ps_timeout_ms=4000"}), 0, 2, folder.path()});
  INFO(ended.ToString());
  CHECK(ended.chief.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(Says(ended.chief, "for a first worker"));
  for (const auto& [name, status] : ended.members) CHECK(status.code() == absl::StatusCode::kAborted);
}

TEST_CASE("a checkpoint of another experiment is refused, and all end", "[scenario]") {
  TempFolder folder;
  REQUIRE(RunCluster({Mlp({"train.epochs=1"}), 1, 1, folder.path()}).all_ok());
  const Ended ended =
      RunCluster({Mlp({"train.epochs=2", "train.seed=8", "membership.chief_timeout_ms=3000"}), 1, 1, folder.path()});
  INFO(ended.ToString());
  CHECK(ended.chief.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(ended.chief, "seed is 7"));
  // The worker whose data and model were looked at is told; the server may have come too late for that.
  CHECK(ended.members.at("worker:0").code() == absl::StatusCode::kAborted);
  CHECK(Says(ended.members.at("worker:0"), "seed is 7"));
  CHECK_FALSE(ended.members.at("ps:0").ok());
}

TEST_CASE("a job that has finished is not trained again", "[scenario]") {
  TempFolder folder;
  const Experiment experiment = Mlp({"train.epochs=1"});
  const Ended first = RunCluster({experiment, 1, 1, folder.path()});
  REQUIRE(first.all_ok());
  const Ended second = RunCluster({experiment, 1, 1, folder.path()});
  INFO(second.ToString());
  CHECK(second.all_ok());
  CHECK(second.summary == first.summary);
}

TEST_CASE("more epochs go on where fewer ended", "[scenario]") {
  TempFolder resumed, whole;
  REQUIRE(RunCluster({Mlp({"train.epochs=1"}), 2, 1, resumed.path()}).all_ok());
  const Ended longer = RunCluster({Mlp({"train.epochs=2"}), 2, 1, resumed.path()});
  const Ended at_once = RunCluster({Mlp({"train.epochs=2"}), 2, 1, whole.path()});
  INFO(longer.ToString());
  REQUIRE(longer.all_ok());
  REQUIRE(at_once.all_ok());
  CHECK(longer.summary["samples_per_epoch"] == nlohmann::json({kSamples, kSamples}));
  CHECK(longer.summary["parameters_sha256"] == at_once.summary["parameters_sha256"]);
}

}  // namespace
}  // namespace evenkeel::scenarios
