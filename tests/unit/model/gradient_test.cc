// Every layer, every loss and whole graphs against central differences, in double on the reference backend.
#include "unit/model/model_harness.h"

namespace evenkeel::model_test {
namespace {

struct Case {
  std::string name;
  Shape input;
  std::vector<LayerConfig> layers;
};

std::vector<Case> LayerCases() {
  std::vector<Case> cases;
  cases.push_back({"dense", {5}, {DenseLayer("a", 4), DenseLayer("b", 3, "none", {}, false)}});
  for (const char* activation : {"relu", "gelu", "tanh", "sigmoid"}) {
    cases.push_back(
        {std::string("dense with ") + activation, {5}, {DenseLayer("a", 6, activation), DenseLayer("b", 3)}});
    cases.push_back(
        {std::string(activation) + " of a layer that has two readers",
         {5},
         {DenseLayer("a", 6), Plain(activation, "act"), Plain("add", "sum", {"a", "act"}), DenseLayer("b", 3)}});
  }
  auto conv = [&](const std::string& name, Ints kernel, ConvOptions options) {
    cases.push_back({"conv2d " + name,
                     {5, 4, 2},
                     {ConvLayer("before", 4, {1, 1}), ConvLayer("c", 4, std::move(kernel), options),
                      Plain("flatten", "f"), DenseLayer("out", 3)}});
  };
  conv("same 3x3", {3, 3}, {});
  conv("same 2x2, stride 2", {2, 2}, {.stride = {2, 2}});
  conv("same 3x2, stride 2x1, gelu", {3, 2}, {.stride = {2, 1}, .activation = "gelu"});
  conv("valid without bias", {3, 3}, {.padding = "valid", .use_bias = false});
  conv("explicit pads", {3, 3}, {.padding = "explicit", .pads = {2, 0, 1, 2}});
  conv("two groups", {3, 3}, {.groups = 2});
  conv("a group a channel", {3, 3}, {.groups = 4});
  auto pool = [&](const std::string& name, LayerConfig layer) {
    cases.push_back(
        {name, {5, 4, 2}, {ConvLayer("c", 3, {3, 3}), std::move(layer), Plain("flatten", "f"), DenseLayer("out", 3)}});
  };
  pool("max_pool", PoolLayer("max_pool", "p", {2, 2}, {2, 2}));
  pool("max_pool, overlapping, same", PoolLayer("max_pool", "p", {3, 3}, {2, 2}, "same"));
  pool("avg_pool", PoolLayer("avg_pool", "p", {2, 2}, {2, 2}));
  pool("avg_pool, overlapping, same", PoolLayer("avg_pool", "p", {3, 3}, {2, 2}, "same"));
  pool("avg_pool, explicit pads", PoolLayer("avg_pool", "p", {3, 2}, {1, 2}, "explicit", {1, 2, 0, 1}));
  cases.push_back(
      {"global_avg_pool", {4, 3, 2}, {ConvLayer("c", 5, {3, 3}), Plain("global_avg_pool", "g"), DenseLayer("out", 3)}});
  cases.push_back({"batch_norm of features", {4}, {DenseLayer("a", 5), BatchNormLayer("bn"), DenseLayer("out", 3)}});
  cases.push_back({"batch_norm of images",
                   {3, 3, 2},
                   {ConvLayer("c", 4, {3, 3}), BatchNormLayer("bn"), Plain("relu", "r"), Plain("flatten", "f"),
                    DenseLayer("out", 3)}});
  cases.push_back({"batch_norm of the input", {4}, {BatchNormLayer("bn"), DenseLayer("out", 3)}});
  cases.push_back({"relu of a batch_norm that is read elsewhere too",
                   {4},
                   {DenseLayer("a", 5), BatchNormLayer("bn"), Plain("relu", "r"), Plain("add", "sum", {"bn", "r"}),
                    DenseLayer("out", 3)}});
  cases.push_back({"layer_norm of features", {4}, {DenseLayer("a", 5), LayerNormLayer("ln"), DenseLayer("out", 3)}});
  cases.push_back(
      {"layer_norm of images, first", {3, 2, 4}, {LayerNormLayer("ln"), Plain("flatten", "f"), DenseLayer("out", 3)}});
  cases.push_back({"dropout", {6}, {DenseLayer("a", 8), DropoutLayer("d", 0.4), DenseLayer("out", 3)}});
  cases.push_back({"dropout of the input, and of rate 0",
                   {6},
                   {DropoutLayer("d", 0.4), DenseLayer("a", 8, "tanh"), DropoutLayer("d0", 0), DenseLayer("out", 3)}});
  cases.push_back({"reshape",
                   {12},
                   {DenseLayer("a", 12), ReshapeLayer("r", {2, -1, 3}), ConvLayer("c", 2, {2, 2}),
                    Plain("flatten", "f"), DenseLayer("out", 3)}});
  cases.push_back({"add of three",
                   {4},
                   {DenseLayer("a", 5), DenseLayer("b", 5, "none", {"input"}), DenseLayer("c", 5, "tanh", {"a"}),
                    Plain("add", "s", {"a", "b", "c"}), DenseLayer("out", 3)}});
  cases.push_back(
      {"add of a layer to itself", {4}, {DenseLayer("a", 5), Plain("add", "s", {"a", "a"}), DenseLayer("out", 3)}});
  cases.push_back({"concat",
                   {4},
                   {DenseLayer("a", 5), DenseLayer("b", 2, "relu", {"input"}), Plain("concat", "k", {"b", "a"}),
                    DenseLayer("out", 3)}});
  cases.push_back(
      {"concat with the input", {4}, {DenseLayer("a", 5), Plain("concat", "k", {"input", "a"}), DenseLayer("out", 3)}});
  return cases;
}

std::vector<Case> GraphCases() {
  std::vector<Case> cases;
  cases.push_back({"residual blocks with batch norm and a projection",
                   {4, 4, 2},
                   {ConvLayer("stem", 3, {3, 3}, {.use_bias = false}), BatchNormLayer("stem_bn"),
                    Plain("relu", "stem_relu"), ConvLayer("c1", 3, {3, 3}, {.use_bias = false}), BatchNormLayer("b1"),
                    Plain("relu", "r1"), ConvLayer("c2", 3, {3, 3}, {.use_bias = false}), BatchNormLayer("b2"),
                    Plain("add", "sum1", {"b2", "stem_relu"}), Plain("relu", "r2"),
                    ConvLayer("c3", 5, {3, 3}, {.stride = {2, 2}, .use_bias = false}), BatchNormLayer("b3"),
                    ConvLayer("proj", 5, {1, 1}, {.stride = {2, 2}, .use_bias = false}, {"r2"}), BatchNormLayer("b4"),
                    Plain("add", "sum2", {"b4", "b3"}), Plain("relu", "r3"), Plain("global_avg_pool", "gap"),
                    DenseLayer("out", 3)}});
  cases.push_back({"branches that concat joins",
                   {4, 4, 2},
                   {ConvLayer("stem", 4, {3, 3}, {.activation = "relu"}),
                    ConvLayer("left", 2, {1, 1}, {.activation = "tanh"}, {"stem"}),
                    ConvLayer("right", 3, {3, 3}, {.activation = "relu"}, {"stem"}),
                    Plain("concat", "joined", {"left", "stem", "right"}), PoolLayer("max_pool", "pool", {2, 2}, {2, 2}),
                    Plain("flatten", "flat"), LayerNormLayer("ln"), DenseLayer("out", 3)}});
  cases.push_back({"an output with two readers, one a view",
                   {6},
                   {DenseLayer("a", 6, "sigmoid"), Plain("flatten", "f", {"a"}), DropoutLayer("d", 0.3, {"f"}),
                    Plain("relu", "r", {"a"}), Plain("add", "s", {"d", "r"}), Plain("add", "t", {"s", "f"}),
                    DenseLayer("out", 3)}});
  cases.push_back({"a chain of in-place layers",
                   {6},
                   {DenseLayer("a", 8), DropoutLayer("d1", 0.2), Plain("relu", "r"), DropoutLayer("d2", 0.2),
                    Plain("tanh", "t"), Plain("flatten", "f"), Plain("sigmoid", "g"), DenseLayer("out", 3)}});
  return cases;
}

void CheckCase(const Case& c, std::int64_t batch) {
  ModelConfig config{c.layers, LossOf("softmax_cross_entropy")};
  ModelOptions options{.input = c.input};
  auto harness = DoubleHarness(config, options);
  CheckGradients(*harness, RandomBatch(11, batch, options, Labels::kClasses, 3));
}

TEST_CASE("every layer's gradients equal central differences", "[model]") {
  for (const Case& c : LayerCases()) {
    DYNAMIC_SECTION(c.name) { CheckCase(c, 4); }
  }
}

TEST_CASE("whole graphs' gradients equal central differences", "[model]") {
  for (const Case& c : GraphCases()) {
    DYNAMIC_SECTION(c.name) { CheckCase(c, 3); }
  }
}

TEST_CASE("every loss's gradients equal central differences", "[model]") {
  struct LossCase {
    LossConfig loss;
    std::int64_t outputs, width;
    Labels labels;
  };
  const std::vector<LossCase> cases = {
      {LossOf("softmax_cross_entropy"), 4, 1, Labels::kClasses},
      {LossOf("softmax_cross_entropy", 0.1), 4, 1, Labels::kClasses},
      {LossOf("sigmoid_cross_entropy"), 1, 1, Labels::kZeroOne},
      {LossOf("sigmoid_cross_entropy", 0.2), 3, 3, Labels::kZeroOne},
      {LossOf("mse"), 1, 1, Labels::kReal},
      {LossOf("mse"), 3, 3, Labels::kReal},
      {LossOf("huber", 0, 0.7), 2, 2, Labels::kReal},
      {LossOf("hinge"), 1, 1, Labels::kZeroOne},
      {LossOf("hinge"), 4, 1, Labels::kClasses},
  };
  for (const LossCase& c : cases) {
    DYNAMIC_SECTION(c.loss.type << " with " << c.outputs << " outputs, smoothing " << c.loss.label_smoothing) {
      ModelConfig config{{DenseLayer("a", 5, "tanh"), DenseLayer("out", c.outputs)}, c.loss};
      ModelOptions options{.input = {4}, .label_width = c.width};
      auto harness = DoubleHarness(config, options);
      CheckGradients(*harness, RandomBatch(5, 6, options, c.labels, c.outputs));
    }
  }
}

// A random graph over images of one shape, whose open ends are added up before the last layer.
std::vector<LayerConfig> RandomGraph(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<LayerConfig> layers = {ConvLayer("n0", 3, {1, 1})};
  std::vector<std::string> values = {"n0"};
  std::vector<bool> used = {false};
  auto pick = [&] {
    const std::size_t index = rng.Below(3) == 0 ? rng.Below(values.size()) : values.size() - 1;
    used[index] = true;
    return values[index];
  };
  auto push = [&](LayerConfig layer) {
    values.push_back(layer.name);
    used.push_back(false);
    layers.push_back(std::move(layer));
  };
  for (int i = 1; i <= 12; ++i) {
    const std::string name = "n" + std::to_string(i);
    const std::string from = pick();
    switch (rng.Below(10)) {
      case 0:
        push(ConvLayer(name, 3, {2, 2}, {}, {from}));
        break;
      case 1:
        push(Plain("relu", name, {from}));
        break;
      case 2:
        push(Plain("tanh", name, {from}));
        break;
      case 3:
        push(Plain("gelu", name, {from}));
        break;
      case 4:
        push(DropoutLayer(name, 0.3, {from}));
        break;
      case 5:
        push(BatchNormLayer(name, {from}));
        break;
      case 6:
        push(Plain("add", name, {from, pick()}));
        break;
      case 7:
        push(Plain("add", name, {pick(), from, pick()}));
        break;
      case 8:
        push(ReshapeLayer(name, {2, 2, 3}, {from}));
        break;
      default:
        layers.push_back(Plain("concat", name + "c", {from, pick()}));
        push(ConvLayer(name, 3, {1, 1}, {}, {name + "c"}));
    }
  }
  std::vector<std::string> open;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!used[i]) open.push_back(values[i]);
  }
  if (open.size() > 1) layers.push_back(Plain("add", "open", open));
  layers.push_back(Plain("flatten", "flat"));
  layers.push_back(DenseLayer("out", 3));
  return layers;
}

TEST_CASE("random graphs' gradients equal central differences, whatever memory they share", "[model]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    DYNAMIC_SECTION("seed " << seed) {
      ModelConfig config{RandomGraph(seed), LossOf("softmax_cross_entropy")};
      ModelOptions options{.input = {2, 2, 2}};
      auto harness = DoubleHarness(config, options);
      CheckGradients(*harness, RandomBatch(seed, 3, options, Labels::kClasses, 3), 3);
    }
  }
}

}  // namespace
}  // namespace evenkeel::model_test
