#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "evenkeel/metrics/sinks.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

TEST_CASE("summary.json has the promised keys in order", "[metrics]") {
  Summary summary;
  summary.status = "finished";
  summary.commits = 118;
  summary.epochs = 2;
  summary.samples_trained = 120000;
  summary.samples_per_epoch = {60000, 60000};
  summary.dropped_updates = 3;
  summary.samples_rolled_back = 519;
  summary.wall_seconds = 12.5;
  summary.examples_per_second = 9600;
  summary.train_loss = 0.25;
  summary.eval = {{"loss", 0.3}, {"accuracy", 0.91}};
  summary.best = Summary::Best{"g1-c100", "accuracy", 0.92};
  summary.workers = {{"worker:0", 118, 60000, 508.5, 0.05}};
  summary.parameters_sha256 = "00ff";

  auto storage = MakeMemoryStorage();
  REQUIRE(storage->MakeFolder("/model").ok());
  REQUIRE(WriteSummary(*storage, "/model", summary).ok());
  CHECK(*storage->Read("/model/summary.json") == R"({
  "status": "finished",
  "reason": "",
  "commits": 118,
  "epochs": 2,
  "samples_trained": 120000,
  "samples_per_epoch": [
    60000,
    60000
  ],
  "dropped_updates": 3,
  "samples_rolled_back": 519,
  "wall_seconds": 12.5,
  "examples_per_second": 9600.0,
  "train_loss": 0.25,
  "eval": {
    "loss": 0.3,
    "accuracy": 0.91
  },
  "best": {
    "checkpoint": "g1-c100",
    "metric": "accuracy",
    "value": 0.92
  },
  "workers": [
    {
      "id": "worker:0",
      "commits": 118,
      "samples": 60000,
      "mean_batch": 508.5,
      "mean_step_seconds": 0.05
    }
  ],
  "parameters_sha256": "00ff"
}
)");
}

TEST_CASE("numbers that are missing or not finite are null", "[metrics]") {
  Summary summary;
  summary.train_loss = std::numeric_limits<double>::quiet_NaN();
  summary.eval = {{"loss", std::numeric_limits<double>::infinity()}};
  summary.workers = {{"worker:0", 0, 0, std::nan(""), std::nan("")}};
  auto json = nlohmann::json::parse(ToJson(summary));
  CHECK(json["train_loss"].is_null());
  CHECK(json["eval"]["loss"].is_null());
  CHECK(json["best"].is_null());
  CHECK(json["workers"][0]["mean_batch"].is_null());
  CHECK(json["samples_per_epoch"] == nlohmann::json::array());
  summary.train_loss.reset();
  CHECK(nlohmann::json::parse(ToJson(summary))["train_loss"].is_null());
}

TEST_CASE("a reason that is not UTF-8 does not break the summary", "[metrics]") {
  Summary summary;
  summary.status = "failed";
  summary.reason = "bad name \xff\xfe in [dense]";
  CHECK(nlohmann::json::parse(ToJson(summary))["status"] == "failed");
}

}  // namespace
}  // namespace evenkeel
