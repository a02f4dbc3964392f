#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "evenkeel/config/cluster.h"
#include "evenkeel/config/experiment.h"

namespace evenkeel {
namespace {

std::vector<std::string> JsonFiles(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(EVENKEEL_SOURCE_DIR "/configs/" + folder)) {
    if (entry.path().extension() == ".json") out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST_CASE("every experiment that ships is valid and bears its file's name", "[config]") {
  const std::vector<std::string> files = JsonFiles("experiments");
  REQUIRE(files.size() >= 7);
  for (const std::string& file : files) {
    const auto experiment = LoadExperiment(file, {});
    INFO(experiment.status().ToString());
    REQUIRE(experiment.ok());
    CHECK(experiment->name == std::filesystem::path(file).stem().string());
    CHECK((experiment->input.eval.has_value() || experiment->input.eval_fraction > 0));
  }
}

TEST_CASE("cifar_resnet20 has twenty layers of weights on its longest way", "[config]") {
  const auto experiment = LoadExperiment(EVENKEEL_SOURCE_DIR "/configs/experiments/cifar_resnet20.json", {});
  REQUIRE(experiment.ok());
  const auto count = [&](const std::string& type) {
    return std::count_if(experiment->model.layers.begin(), experiment->model.layers.end(),
                         [&](const LayerConfig& layer) { return layer.type == type; });
  };
  CHECK(count("conv2d") == 19 + 2);  // two more on the shortcuts that change the shape
  CHECK(count("dense") == 1);
  CHECK(count("add") == 9);
}

TEST_CASE("every cluster file that ships is valid", "[config]") {
  const std::vector<std::string> files = JsonFiles("clusters");
  REQUIRE(files.size() >= 3);
  for (const std::string& file : files) {
    const auto cluster = LoadCluster(file, "worker:0");
    INFO(cluster.status().ToString());
    REQUIRE(cluster.ok());
    CHECK(CheckBatchSizes(*cluster, true).ok());
  }
}

}  // namespace
}  // namespace evenkeel
