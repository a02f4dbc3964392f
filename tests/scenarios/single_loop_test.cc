// A cluster's result is that of a plain loop in one process: the mean over the step's samples, whatever each worker's
// share.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"
#include "evenkeel/protocol/layout.h"
#include "scenarios/cluster_harness.h"

namespace evenkeel::scenarios {
namespace {

struct LoopResult {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<float>> parameters;
  int steps = 0;
  int clipped = 0;
};

// One epoch with momentum (v = mu v + g, w = w - lr v) and, where asked for, clipping by the global norm.
LoopResult TrainAlone(const Experiment& experiment) {
  auto data = OpenTrainingData(experiment.input, "");
  REQUIRE(data.ok());
  const ExampleSpec& spec = data->dataset->spec();
  const std::unique_ptr<Backend> backend = MakeReferenceBackend(DType::kFloat32);
  auto model = Model::Build(experiment.model, {spec.features, spec.label_width, spec.sparse, spec.classes}, *backend);
  REQUIRE(model.ok());
  LoopResult result;
  std::vector<std::vector<float>> gradients, velocities;
  std::vector<void*> parameter_pointers, gradient_pointers;
  for (const TensorSpec& tensor : (*model)->tensors()) {
    const auto count = static_cast<std::size_t>(tensor.shape.elements());
    result.tensors.push_back(tensor);
    InitializeTensor(tensor, experiment.train.seed, 0, result.parameters.emplace_back(count));
    gradients.emplace_back(count);
    velocities.emplace_back(count);
  }
  for (auto& values : result.parameters) parameter_pointers.push_back(values.data());
  for (auto& values : gradients) gradient_pointers.push_back(values.data());
  REQUIRE((*model)->Bind(parameter_pointers, gradient_pointers).ok());

  const TrainConfig& train = experiment.train;
  const auto rate = static_cast<float>(train.schedule.learning_rate);
  Batch batch;
  for (std::int64_t begin = 0; begin < kSamples; begin += train.global_batch_size) {
    const std::int64_t end = std::min(begin + train.global_batch_size, kSamples);
    REQUIRE(AssembleBatch(*data->dataset, {train.seed, false, 0}, Epoch(0), {{begin, end}}, batch).ok());
    ModelInput input;
    input.batch = batch.size();
    input.features = batch.features;
    input.labels = batch.labels;
    (*model)->ParametersChanged();
    auto step = (*model)->TrainStep(input, [](int) {});
    REQUIRE(step.ok());
    REQUIRE(step->samples == end - begin);
    double squared = 0;
    for (auto& gradient : gradients) {
      for (float& g : gradient) {
        g /= static_cast<float>(end - begin);
        squared += static_cast<double>(g) * static_cast<double>(g);
      }
    }
    const double limit = train.optimizer.clip_norm;
    const bool clip = limit > 0 && std::sqrt(squared) > limit;
    const auto scale = clip ? static_cast<float>(limit / std::sqrt(squared)) : 1.0f;
    for (std::size_t t = 0; t < gradients.size(); ++t) {
      for (std::size_t i = 0; i < gradients[t].size(); ++i) {
        velocities[t][i] = train.optimizer.momentum * velocities[t][i] + scale * gradients[t][i];
        result.parameters[t][i] -= rate * velocities[t][i];
      }
    }
    ++result.steps;
    result.clipped += clip;
  }
  return result;
}

void CompareWithLoop(const Experiment& experiment, int workers, int servers, const LoopResult& loop) {
  TempFolder folder;
  const Ended ended = RunCluster({experiment, workers, servers, folder.path()});
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
  CHECK(ended.summary["commits"] == loop.steps);
  auto list = ListCheckpoints(Storage::Posix(), folder.path());
  REQUIRE(list.ok());
  auto reader = CheckpointReader::Open(Storage::Posix(), folder.path(), list->versions.back());
  REQUIRE(reader.ok());
  for (std::size_t t = 0; t < loop.tensors.size(); ++t) {
    INFO(loop.tensors[t].name << " with " << workers << " workers, " << servers << " servers");
    auto values = reader->ReadTensor(loop.tensors[t].name);
    REQUIRE(values.ok());
    CHECK(RelativeDifference(*values, loop.parameters[t]) < 1e-5);
  }
}

TEST_CASE("a bsp epoch equals a plain loop in one process", "[scenario]") {
  const Experiment experiment = Mlp({"train.epochs=1"});
  const LoopResult loop = TrainAlone(experiment);
  CHECK(loop.steps == 11);
  CompareWithLoop(experiment, 1, 1, loop);
  CompareWithLoop(experiment, 3, 2, loop);
}

TEST_CASE("clipping by the global norm equals a plain loop's", "[scenario]") {
  const Experiment experiment = Mlp({"train.epochs=1", "train.optimizer.clip_norm=0.3"});
  const LoopResult loop = TrainAlone(experiment);
  CHECK(loop.clipped > 0);
  CompareWithLoop(experiment, 2, 3, loop);
}

TEST_CASE("the mean is right when workers take unequal shares", "[scenario]") {
  const Experiment experiment =
      Mlp({"train.epochs=1", R"(batching={"mode": "static", "speeds": [7, 1, 3], "min_batch_size": 1})"});
  CompareWithLoop(experiment, 3, 2, TrainAlone(experiment));
}

// A worker that wakes late finds the next step's ticket and the one after it: what it has read for the former stays.
TEST_CASE("while nobody comes or goes each sample is read once an epoch", "[scenario]") {
  constexpr int kEpochs = 40;
  TempFolder folder;
  std::atomic<std::int64_t> read{0};
  const Ended ended = RunCluster({Mlp({absl::StrCat("train.epochs=", kEpochs), "train.global_batch_size=16"}), 3, 2,
                                  folder.path(), [&read](Cluster&, int, std::int64_t) { ++read; }});
  INFO(ended.ToString());
  REQUIRE(ended.all_ok());
  CHECK(read == kEpochs * kSamples);
}

}  // namespace
}  // namespace evenkeel::scenarios
