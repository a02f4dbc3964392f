#include "evenkeel/launch/local_job.h"

#include <algorithm>
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

LocalJobOptions Options() {
  LocalJobOptions options;
  options.program_folder = "/opt/bin";
  options.experiment = "wine.json";
  options.overrides = {"train.seed=3", "name=a b"};
  options.servers = 2;
  options.workers = 3;
  options.evaluator = true;
  options.model_dir = "/jobs/wine";
  options.data_folder = "/data";
  options.log_folder = "/jobs/wine/logs";
  return options;
}

nlohmann::json TfConfigOf(const ProcessSpec& spec) {
  REQUIRE(spec.environment.size() == 1);
  CHECK(spec.environment[0].first == "TF_CONFIG");
  return nlohmann::json::parse(spec.environment[0].second);
}

bool Has(const ProcessSpec& spec, const std::string& argument) {
  return std::find(spec.command.begin(), spec.command.end(), argument) != spec.command.end();
}

TEST_CASE("a local chief asks for a free port and reports it", "[launch][fast]") {
  const ProcessSpec chief = LocalChief(Options());
  CHECK(chief.name == "chief:0");
  CHECK(chief.command[0] == "/opt/bin/evenkeel-chief");
  CHECK(chief.log_file == "/jobs/wine/logs/chief-0.log");
  CHECK(TfConfigOf(chief)["cluster"]["chief"][0] == "127.0.0.1:0");
  CHECK(Has(chief, "--ready-fd"));
  CHECK_FALSE(Has(chief, "--train"));
  LocalJobOptions trains = Options();
  trains.chief_trains = true;
  CHECK(Has(LocalChief(trains), "--train"));
}

TEST_CASE("a chief that is started again keeps its port and reports none", "[launch][fast]") {
  LocalJobOptions options = Options();
  options.chief_trains = true;
  const ProcessSpec chief = LocalChiefAgain(options, 4711);
  CHECK(TfConfigOf(chief)["cluster"]["chief"][0] == "127.0.0.1:4711");
  CHECK(Has(chief, "--train"));
  CHECK_FALSE(Has(chief, "--ready-fd"));
}

TEST_CASE("a chief that awaits only some workers lists those, and the workers know all", "[launch][fast]") {
  LocalJobOptions options = Options();
  options.awaited_workers = 1;
  CHECK(TfConfigOf(LocalChief(options))["cluster"]["worker"].size() == 1);
  CHECK(TfConfigOf(LocalMembers(options, 1)[4])["cluster"]["worker"].size() == 3);
}

TEST_CASE("every local member knows the chief's port and its own task", "[launch][fast]") {
  const std::vector<ProcessSpec> members = LocalMembers(Options(), 4711);
  REQUIRE(members.size() == 6);
  CHECK(members[1].name == "ps:1");
  CHECK(members[4].name == "worker:2");
  CHECK(members[5].name == "evaluator:0");
  for (const ProcessSpec& member : members) {
    const nlohmann::json config = TfConfigOf(member);
    CHECK(config["cluster"]["chief"][0] == "127.0.0.1:4711");
    CHECK(config["cluster"]["ps"].size() == 2);
    CHECK(config["cluster"]["worker"].size() == 3);
    CHECK(config["model_dir"] == "/jobs/wine");
    const std::string task =
        config["task"]["type"].get<std::string>() + ":" + std::to_string(config["task"]["index"].get<int>());
    CHECK(task == member.name);
    CHECK(std::count(member.command.begin(), member.command.end(), "--set") == 2);
  }
}

TEST_CASE("an evaluator is listed only where one is asked for", "[launch][fast]") {
  LocalJobOptions options = Options();
  options.evaluator = false;
  CHECK(LocalMembers(options, 1).size() == 5);
  CHECK_FALSE(TfConfigOf(LocalChief(options))["cluster"].contains("evaluator"));
}

}  // namespace
}  // namespace evenkeel
