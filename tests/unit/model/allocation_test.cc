// What a training step allocates once it has found its rhythm.
#include "count_allocations.h"
#include "unit/model/model_harness.h"

namespace evenkeel::model_test {
namespace {

// oneDNN makes a few small maps each time that it runs a primitive; activations, scratch and weights stay where they
// are.
TEST_CASE("a training step in its steady state allocates no memory for data", "[model]") {
  const ModelOptions options{.input = {8, 8, 3}};
  const ModelConfig config{
      {ConvLayer("stem", 8, {3, 3}, {.use_bias = false}), BatchNormLayer("norm"), Plain("relu", "relu"),
       ConvLayer("side", 8, {1, 1}, {.activation = "tanh"}, {"relu"}), Plain("add", "sum", {"side", "relu"}),
       PoolLayer("max_pool", "pool", {2, 2}, {2, 2}), Plain("flatten", "flat"), DropoutLayer("drop", 0.3),
       DenseLayer("hidden", 16, "relu"), LayerNormLayer("layer_norm"), DenseLayer("out", 4)},
      LossOf("softmax_cross_entropy")};
  Harness<float> harness(config, options, *MakeCpuBackend({2}));
  const Batch batch = RandomBatch(7, 12, options, Labels::kClasses, 4);
  const ModelInput input = batch.Input();
  std::int64_t ready = 0, counted = 0;
  const std::function<void(int)> count = [&ready](int) { ++ready; };
  for (int step = 0; step < 20; ++step) {
    const std::int64_t before = large_allocations.load();
    harness.model().ParametersChanged();
    const absl::StatusOr<StepResult> result = harness.model().TrainStep(input, count);
    if (step >= 10) counted += large_allocations.load() - before;
    REQUIRE(result.ok());
  }
  CHECK(ready > 0);
  CHECK(counted == 0);
}

}  // namespace
}  // namespace evenkeel::model_test
