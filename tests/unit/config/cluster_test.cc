#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/config/cluster.h"

namespace evenkeel {
namespace {

constexpr char kTwoWorkers[] = R"({"cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}})";

std::string With(const std::string& rest) {
  return R"({"cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}, )" + rest + "}";
}

std::string ErrorOf(const std::string& json, std::optional<std::string> task = std::nullopt) {
  const auto cluster = ParseCluster(json, "TF_CONFIG", std::move(task));
  if (cluster.ok()) return "accepted";
  CHECK(cluster.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(cluster.status().message());
}

TEST_CASE("a bad cluster file is refused with its place, the value and what is allowed", "[config]") {
  struct Case {
    std::string json;
    std::string error;
  };
  const std::vector<Case> cases = {
      {"", "TF_CONFIG: not JSON: the text is empty"},
      {"{\n  \"cluster\": oops}", "TF_CONFIG: not JSON: line 2, column 14"},
      {"[]", "TF_CONFIG: [] is a list; expected an object"},
      {R"({"task": {"type": "ps", "index": 0}})", "TF_CONFIG: cluster: is required"},
      {R"({"cluster": {"chief": ["a:1"]}, "cluster": {}})", "TF_CONFIG: cluster: the key appears twice"},
      {R"({"clutser": {}})", "TF_CONFIG: clutser: unknown field, did you mean 'cluster'?; allowed: cluster, task,"},
      {R"({"cluster": {"chief": ["a:1"], "wroker": []}})", "cluster.wroker: unknown field, did you mean 'worker'?"},
      {R"({"cluster": {"chief": ["a:1"], "master": ["a:2"], "ps": ["b:1"]}})",
       "cluster: 'chief' and 'master' are two names of one role"},
      {R"({"cluster": {"ps": ["b:1"]}})", "cluster.chief: lists 0 addresses; expected one"},
      {R"({"cluster": {"master": ["a:1", "b:1"], "ps": ["b:2"]}})", "cluster.master: lists 2 addresses; expected one"},
      {R"({"cluster": {"chief": ["a:1"], "worker": ["c:1"]}})", "cluster.ps: lists no address"},
      {R"({"cluster": {"chief": "a:1", "ps": ["b:1"]}})", "cluster.chief: 'a:1' is a string; expected a list"},
      {R"({"cluster": {"chief": ["a:1"], "ps": [7]}})", "cluster.ps[0]: 7 is a number; expected \"host:port\""},
      {R"({"cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "A:1"]}})",
       "cluster.worker[1]: 'A:1' is also the address of cluster.chief[0]"},
      {R"({"cluster": {"chief": ["a:1"], "ps": ["::1:2222"]}})", "cluster.ps[0]: '::1:2222' does not say where"},
      {With(R"("task": {"type": "worker", "index": 7})"),
       "TF_CONFIG: task.index: 7 is out of range; the cluster lists 2 workers (0 to 1)"},
      {With(R"("task": {"type": "ps", "index": "1"})"),
       "task.index: 1 is out of range; the cluster lists 1 ps (only 0)"},
      {With(R"("task": {"type": "chief", "index": 1})"), "task.index: 1 is out of range"},
      {With(R"("task": {"type": "worker", "index": "x"})"), "task.index: 'x' is no index"},
      {With(R"("task": {"type": "worker", "index": -1})"), "task.index: '-1' is no index"},
      {With(R"("task": {"type": "worker", "index": 0.5})"), "task.index: '0.5' is no index"},
      {With(R"("task": {"type": "worker", "index": null})"), "task.index: null is null"},
      {With(R"("task": {"type": "worker"})"), "task.index: is required"},
      {With(R"("task": {"type": "wroker", "index": 0})"),
       "task.type: 'wroker' is not one of chief, master, ps, worker"},
      {With(R"("task": {"index": 0})"), "task.type: is required"},
      {With(R"("batch_size_list": [128, 0])"), "batch_size_list[1]: 0 is no batch size"},
      {With(R"("batch_size_list": "[128, 1.5]")"), "batch_size_list[1]: 1.5 is no batch size"},
      {With(R"("batch_size_list": "128,128")"), "batch_size_list: '128,128' is not JSON"},
      {With(R"("batch_size_list": 128)"), "batch_size_list: 128 is a number; expected a list"},
      {With(R"("model_dir": 3)"), "model_dir: 3 is a number; expected a string"},
  };
  for (const Case& c : cases) {
    INFO(c.json);
    CHECK_THAT(ErrorOf(c.json), Catch::Contains(c.error));
  }
}

TEST_CASE("a whole TF_CONFIG is read", "[config]") {
  const auto cluster = ParseCluster(
      R"({"cluster": {"master": ["h1:2222"], "ps": ["[::1]:0", "h2:0"], "worker": ["10.0.0.1:0", "10.0.0.1:0"],
          "evaluator": ["h3:5"]},
          "task": {"type": "worker", "index": "1"}, "environment": "cloud", "model_dir": "/data",
          "batch_size_list": "[128,64]"})",
      "TF_CONFIG", std::nullopt);
  REQUIRE(cluster.ok());
  CHECK(cluster->chief == HostPort{"h1", 2222});
  CHECK(cluster->ps == std::vector<HostPort>{{"::1", 0}, {"h2", 0}});
  CHECK(cluster->ps[0].ToString() == "[::1]:0");
  CHECK(cluster->workers.size() == 2);
  CHECK(cluster->evaluators == std::vector<HostPort>{{"h3", 5}});
  CHECK(cluster->task == TaskId{Role::kWorker, 1});
  CHECK(cluster->environment == "cloud");
  CHECK(cluster->model_dir == "/data");
  CHECK(cluster->batch_sizes == std::vector<std::int64_t>{128, 64});
}

TEST_CASE("--task stands over the file's task", "[config]") {
  const std::string json = With(R"("task": {"type": "worker", "index": 9})");
  const auto cluster = ParseCluster(json, "f", "master:0");
  REQUIRE(cluster.ok());
  CHECK(cluster->task == TaskId{Role::kChief, 0});
  CHECK_THAT(ErrorOf(json, "worker:2"), Catch::Contains("--task: 2 is out of range; the cluster lists 2 workers"));
  CHECK_THAT(ErrorOf(json, "worker"), Catch::Contains("--task: 'worker' is no task; expected TYPE:INDEX"));
  CHECK_THAT(ErrorOf(json, "cheif:0"), Catch::Contains("--task: 'cheif' is not one of"));
  CHECK_THAT(ErrorOf(json, "ps:x"), Catch::Contains("--task: 'x' is no index"));
}

TEST_CASE("an evaluator may be outside the cluster, and must fit where it is listed", "[config]") {
  CHECK(ErrorOf(kTwoWorkers, "evaluator:0") == "accepted");
  CHECK(ErrorOf(kTwoWorkers, "evaluator:3") == "accepted");
  const std::string listed = R"({"cluster": {"chief": ["a:1"], "ps": ["b:1"], "evaluator": ["e:1"]}})";
  CHECK(ErrorOf(listed, "evaluator:0") == "accepted");
  CHECK_THAT(ErrorOf(listed, "evaluator:1"), Catch::Contains("1 is out of range; the cluster lists 1 evaluator"));
  CHECK_THAT(ErrorOf(listed, "worker:0"), Catch::Contains("0 is out of range; the cluster lists 0 workers (none)"));
}

TEST_CASE("addresses are split into host and port, or refused", "[config]") {
  const auto host_port = [](const char* text) {
    const auto parsed = ParseHostPort(text);
    return parsed.ok() ? parsed->host + " " + std::to_string(parsed->port) : "refused";
  };
  CHECK(host_port("localhost:2222") == "localhost 2222");
  CHECK(host_port("node-1.rack_2.example:0") == "node-1.rack_2.example 0");
  CHECK(host_port("127.0.0.1:65535") == "127.0.0.1 65535");
  CHECK(host_port("[::1]:80") == "::1 80");
  CHECK(host_port("[fe80::1%eth0]:80") == "fe80::1%eth0 80");
  CHECK(host_port("1:2:3:4:5:6:7:8:2222") == "1:2:3:4:5:6:7:8 2222");
  for (const char* text :
       {"", "host", "host:", ":80", "host:x", "host:-1", "host:65536", "host:+1", "host: 1", "::1:2222", "::1", "[::1]",
        "[::1]x:1", "[host]:1", "256.0.0.1:1", "ho st:1", "-a:1", "[::1:1"}) {
    INFO(text);
    CHECK(host_port(text) == "refused");
  }
  CHECK_THAT(std::string(ParseHostPort("::1:2222").status().message()), Catch::Contains("in brackets, as [::1]:2222"));
  CHECK(ParseChiefAddress("[::1]:80")->ToString() == "[::1]:80");
  for (const char* text : {"host", "host:0", ":80"}) {
    CHECK(ParseChiefAddress(text).status().message() ==
          absl::StrCat("--chief '", text, "': expected HOST:PORT, the address at which evenkeel-chief listens"));
  }
}

TEST_CASE("batch_size_list has an entry for each training task", "[config]") {
  auto cluster = ParseCluster(With(R"("batch_size_list": [1, 2])"), "f", std::nullopt);
  REQUIRE(cluster.ok());
  CHECK(CheckBatchSizes(*cluster, false).ok());
  CHECK_THAT(std::string(CheckBatchSizes(*cluster, true).message()),
             Catch::Contains("batch_size_list: 2 entries, but 3 tasks train (the chief, then 2 workers)"));
  cluster->batch_sizes.clear();
  CHECK(CheckBatchSizes(*cluster, true).ok());
}

TEST_CASE("the cluster comes from the file, else from TF_CONFIG", "[config]") {
  unsetenv("TF_CONFIG");
  CHECK_THAT(std::string(LoadCluster(std::nullopt, std::nullopt).status().message()),
             Catch::Contains("neither --cluster FILE is given nor the environment variable TF_CONFIG set"));
  setenv("TF_CONFIG", kTwoWorkers, 1);
  const auto cluster = LoadCluster(std::nullopt, "worker:1");
  unsetenv("TF_CONFIG");
  REQUIRE(cluster.ok());
  CHECK(cluster->task->ToString() == "worker:1");
  const auto missing = LoadCluster("/nowhere/cluster.json", std::nullopt);
  CHECK(missing.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(missing.status().message()), Catch::Contains("/nowhere/cluster.json"));
}

}  // namespace
TEST_CASE("an experiment that does not fit the number of training tasks is refused by field", "[config]") {
  Cluster cluster;
  cluster.workers.resize(2);
  Experiment experiment;
  REQUIRE(CheckExperimentFits(experiment, cluster, false).ok());
  experiment.batching.speeds = {3, 1, 1};
  REQUIRE(CheckExperimentFits(experiment, cluster, true).ok());
  REQUIRE(CheckExperimentFits(experiment, cluster, false).message() ==
          "batching.speeds: 3 entries, but 2 tasks train; give one each, the chief's first where it trains");
  experiment.batching.speeds.clear();
  experiment.batching.mode = BatchingConfig::Mode::kStatic;
  experiment.train.global_batch_size = 64;
  experiment.batching.min_batch_size = 32;
  experiment.batching.max_batch_size = 32;
  REQUIRE(CheckExperimentFits(experiment, cluster, false).ok());
  REQUIRE(
      CheckExperimentFits(experiment, cluster, true).message() ==
      "batching.min_batch_size: 32 for each of 3 tasks that train is more than train.global_batch_size, 64; allowed "
      "here: at most 21");
  experiment.train.global_batch_size = 2;
  REQUIRE(CheckExperimentFits(experiment, cluster, true).message() ==
          "train.global_batch_size: 2 is less than a sample for each of 3 tasks that train; allowed here: at least 3");
  experiment.train.global_batch_size = 65;
  REQUIRE(
      CheckExperimentFits(experiment, cluster, false).message() ==
      "batching.max_batch_size: 32 for each of 2 tasks that train is less than train.global_batch_size, 65; allowed "
      "here: 0, or at least 33");
  experiment.batching.max_batch_size = 0;
  experiment.batching.speeds = {2, 1};
  cluster.batch_sizes = {32, 33};
  REQUIRE(CheckExperimentFits(experiment, cluster, false).message() ==
          "batching.speeds: the cluster's batch_size_list says the shares already; leave out one of the two");
  cluster.batch_sizes.clear();
  experiment.train.sync.backup_workers = 1;
  REQUIRE(CheckExperimentFits(experiment, cluster, false).ok());
  experiment.train.sync.backup_workers = 2;
  REQUIRE(CheckExperimentFits(experiment, cluster, false).code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace evenkeel
