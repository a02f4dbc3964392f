// Whole models on the CPU backend against the reference backend.
#include "unit/model/model_harness.h"

namespace evenkeel::model_test {
namespace {

void Compare(const char* what, const std::vector<float>& got, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  INFO(what << ": difference " << std::sqrt(difference) << " of norm " << std::sqrt(norm));
  CHECK(std::sqrt(difference) <= 1e-4 * std::sqrt(norm) + 1e-6);
}

void CompareBackends(const ModelConfig& config, const ModelOptions& options, std::int64_t classes) {
  auto cpu = MakeCpuBackend({.threads = 1});
  REQUIRE(cpu.ok());
  Harness<float> fast(config, options, *std::move(cpu));
  auto exact = DoubleHarness(config, options);
  for (std::size_t t = 0; t < exact->values().size(); ++t) {
    exact->values()[t].assign(fast.values()[t].begin(), fast.values()[t].end());
  }
  for (std::int64_t size : {9, 16, 1, 5}) {
    const Batch batch = RandomBatch(static_cast<std::uint64_t>(size), size, options, Labels::kClasses, classes);
    const StepResult got = fast.Step(batch);
    const StepResult expected = exact->Step(batch);
    INFO("batch " << size);
    CHECK(got.loss_sum == Approx(expected.loss_sum).epsilon(1e-4));
    for (std::size_t t = 0; t < exact->values().size(); ++t) {
      Compare(exact->model().tensors()[t].name.c_str(), fast.gradients()[t], exact->gradients()[t]);
    }
    const std::vector<float> outputs = exact->Predict(batch);
    Compare("outputs", fast.Predict(batch), std::vector<double>(outputs.begin(), outputs.end()));
    // New weights must reach copies that the backend may keep.
    for (std::size_t t = 0; t < exact->values().size(); ++t) {
      for (std::size_t i = 0; i < exact->values()[t].size(); ++i) {
        fast.values()[t][i] *= 1.0625f;
        exact->values()[t][i] = fast.values()[t][i];
      }
    }
    fast.model().ParametersChanged();
    exact->model().ParametersChanged();
  }
}

TEST_CASE("a convolutional network on the CPU backend agrees with the reference", "[model]") {
  CompareBackends({{ConvLayer("c1", 8, {3, 3}, {.activation = "relu"}), PoolLayer("max_pool", "p1", {2, 2}, {2, 2}),
                    ConvLayer("c2", 12, {3, 3}, {.groups = 2, .activation = "tanh"}),
                    PoolLayer("avg_pool", "p2", {3, 3}, {2, 2}, "same"), Plain("flatten", "f"), DropoutLayer("d", 0.3),
                    DenseLayer("fc", 20, "gelu"), LayerNormLayer("ln"), DenseLayer("out", 5)},
                   LossOf("softmax_cross_entropy", 0.1)},
                  {.input = {11, 9, 1}}, 5);
}

TEST_CASE("a residual network on the CPU backend agrees with the reference", "[model]") {
  CompareBackends(
      {{ConvLayer("stem", 8, {3, 3}, {.use_bias = false}), BatchNormLayer("bn0"), Plain("relu", "r0"),
        ConvLayer("c1", 16, {3, 3}, {.stride = {2, 2}, .use_bias = false}), BatchNormLayer("bn1"),
        ConvLayer("proj", 16, {1, 1}, {.stride = {2, 2}, .use_bias = false}, {"r0"}),
        Plain("add", "sum", {"proj", "bn1"}), Plain("sigmoid", "g"), ConvLayer("side", 3, {1, 1}, {}, {"sum"}),
        Plain("concat", "k", {"side", "g"}), Plain("global_avg_pool", "gap"), DenseLayer("out", 4)},
       LossOf("hinge")},
      {.input = {8, 7, 3}}, 4);
}

}  // namespace
}  // namespace evenkeel::model_test
