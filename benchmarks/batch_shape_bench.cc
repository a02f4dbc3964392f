// What batches of odd and changing size cost: a training step of fashion_cnn's model at a batch in use, and the first
// step at a size that was never used before, which makes its primitives anew.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "evenkeel/config/experiment.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"

namespace evenkeel {
namespace {

constexpr char kExperiment[] = R"({
  "name": "shapes",
  "model": {"layers": [
    {"conv2d": {"filters": 32, "kernel": 3, "padding": "same", "use_bias": false}}, {"batch_norm": {}}, {"relu": {}},
    {"max_pool": {"kernel": 2}},
    {"conv2d": {"filters": 64, "kernel": 3, "padding": "same", "use_bias": false}}, {"batch_norm": {}}, {"relu": {}},
    {"max_pool": {"kernel": 2}}, {"flatten": {}}, {"dense": {"units": 128, "activation": "relu"}},
    {"dropout": {"rate": 0.3}}, {"dense": {"units": 10}}],
    "loss": {"type": "softmax_cross_entropy"}},
  "input": {"train": {"idx": {"images": "x", "labels": "y"}}, "classes": 10},
  "train": {"epochs": 1, "global_batch_size": 192, "optimizer": {"sgd": {}}, "schedule": {"learning_rate": 0.1}}
})";

struct Trainer {
  Trainer() {
    backend = *MakeCpuBackend(CpuBackendOptions{1});
    const Experiment experiment = *ParseExperiment(kExperiment, "benchmark", {});
    model = *Model::Build(experiment.model, ModelOptions{Shape{28, 28, 1}, 1, false, 10}, *backend);
    std::vector<void*> values, gradients;
    for (const TensorSpec& tensor : model->tensors()) {
      for (auto* list : {&values, &gradients}) {
        memory.push_back(
            std::make_unique<std::vector<float>>(static_cast<std::size_t>(tensor.shape.elements()), 0.01F));
        list->push_back(memory.back()->data());
      }
    }
    if (!model->Bind(values, gradients).ok()) std::abort();
  }

  void Step(std::int64_t batch) {
    ModelInput input;
    input.batch = batch;
    input.features = std::span<const float>(features).first(static_cast<std::size_t>(batch * 784));
    input.labels = std::span<const float>(labels).first(static_cast<std::size_t>(batch));
    input.row_keys = std::span<const std::uint64_t>(keys).first(static_cast<std::size_t>(batch));
    model->ParametersChanged();
    if (!model->TrainStep(input, [](int) {}).ok()) std::abort();
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::vector<std::unique_ptr<std::vector<float>>> memory;
  std::vector<float> features = std::vector<float>(1024 * 784, 0.5F), labels = std::vector<float>(1024, 1.0F);
  std::vector<std::uint64_t> keys = std::vector<std::uint64_t>(1024, 7);
};

// items/s are samples.
void SizeInUse(benchmark::State& state) {
  Trainer trainer;
  trainer.Step(1024);
  trainer.Step(state.range(0));
  for (auto _ : state) trainer.Step(state.range(0));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void NewSize(benchmark::State& state) {
  Trainer trainer;
  trainer.Step(1024);
  std::int64_t size = state.range(0);
  for (auto _ : state) trainer.Step(++size);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(SizeInUse)
    ->Arg(16)
    ->Arg(17)
    ->Arg(29)
    ->Arg(64)
    ->Arg(67)
    ->Arg(128)
    ->Arg(131)
    ->Arg(256)
    ->Arg(257)
    ->Arg(301)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(NewSize)->Arg(16)->Arg(128)->Arg(256)->Iterations(30)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace evenkeel

BENCHMARK_MAIN();
