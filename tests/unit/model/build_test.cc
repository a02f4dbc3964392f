// What Build makes of a model: shapes, tensors, and messages for what does not fit.
#include "unit/model/model_harness.h"

#include "absl/strings/str_cat.h"

namespace evenkeel::model_test {
namespace {

std::unique_ptr<Model> BuildFloat(const ModelConfig& config, const ModelOptions& options) {
  static const std::unique_ptr<Backend> backend = MakeReferenceBackend(DType::kFloat32);
  return BuildOrFail(config, options, *backend);
}

std::string BuildError(std::vector<LayerConfig> layers, Shape input, LossConfig loss = {}, ModelOptions options = {}) {
  static const std::unique_ptr<Backend> backend = MakeReferenceBackend(DType::kFloat32);
  options.input = std::move(input);
  auto model = Model::Build(ModelConfig{std::move(layers), std::move(loss)}, options, *backend);
  REQUIRE_FALSE(model.ok());
  CHECK(model.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(model.status().message());
}

// Output of one layer over one input, with a dense layer behind where the loss needs one axis.
Shape OutputOfLayer(LayerConfig layer, Shape input) {
  std::vector<LayerConfig> layers;
  layers.push_back(ConvLayer("w", input[-1], {1, 1}));
  layers.push_back(std::move(layer));
  layers.push_back(ReshapeLayer("probe", {-1}));
  auto model = BuildFloat(ModelConfig{layers, {}}, {.input = std::move(input)});
  return model->output_shape();
}

TEST_CASE("windows give the shapes that TensorFlow's padding rules give", "[model]") {
  CHECK(OutputOfLayer(ConvLayer("c", 4, {3, 3}), {7, 5, 2}) == Shape{7 * 5 * 4});
  CHECK(OutputOfLayer(ConvLayer("c", 4, {3, 3}, {.stride = {2, 2}}), {7, 5, 2}) == Shape{4 * 3 * 4});
  CHECK(OutputOfLayer(ConvLayer("c", 4, {3, 2}, {.padding = "valid"}), {7, 5, 2}) == Shape{5 * 4 * 4});
  CHECK(OutputOfLayer(ConvLayer("c", 4, {3, 3}, {.stride = {2, 1}, .padding = "explicit", .pads = {1, 0, 2, 2}}),
                      {7, 5, 2}) == Shape{3 * 7 * 4});
  CHECK(OutputOfLayer(PoolLayer("max_pool", "p", {2, 2}, {2, 2}), {7, 5, 2}) == Shape{3 * 2 * 2});
  CHECK(OutputOfLayer(PoolLayer("avg_pool", "p", {2, 2}, {2, 2}, "same"), {7, 5, 2}) == Shape{4 * 3 * 2});
  CHECK(OutputOfLayer(Plain("global_avg_pool", "g"), {7, 5, 2}) == Shape{2});
  CHECK(OutputOfLayer(ReshapeLayer("r", {5, -1}), {2, 5, 3}) == Shape{30});
}

TEST_CASE("same padding puts the odd pixel at the bottom and right", "[model]") {
  // A 2x2 kernel of ones over 2x2 pixels: the last row and column see padding, the first do not.
  ModelConfig config{{ConvLayer("c", 1, {2, 2}, {.use_bias = false}), Plain("flatten", "f")}, LossOf("mse")};
  ModelOptions options{.input = {2, 2, 1}, .label_width = 4};
  auto harness = DoubleHarness(config, options);
  harness->Value("c/weight") = {1, 1, 1, 1};
  Batch batch{1, {1, 10, 100, 1000}, {}, {}};
  CHECK(harness->Predict(batch) == std::vector<float>{1111, 1010, 1100, 1000});
}

TEST_CASE("tensors are named by layer, trainable ones first, biases and scales without decay", "[model]") {
  ModelConfig config{{ConvLayer("c1", 8, {3, 5}, {.groups = 2}), BatchNormLayer("bn"), Plain("flatten", "f"),
                      DenseLayer("fc", 3, "relu")},
                     {}};
  auto model = BuildFloat(config, {.input = {6, 6, 4}});
  const auto tensors = model->tensors();
  std::string names;
  for (const TensorSpec& tensor : tensors)
    absl::StrAppend(&names, tensor.name, tensor.shape.ToString(), tensor.decay ? "d" : "",
                    tensor.statistic ? "s " : " ");
  CHECK(names ==
        "c1/weight[3,5,2,8]d c1/bias[8] bn/gamma[8] bn/beta[8] fc/weight[288,3]d fc/bias[3] bn/moving_mean[8]s "
        "bn/moving_variance[8]s ");
  CHECK(tensors[0].initializer.kind == InitializerSpec::Kind::kHeNormal);
  CHECK(tensors[0].initializer.fan_in == 3 * 5 * 2);
  CHECK(tensors[0].initializer.fan_out == 3 * 5 * 4);
  CHECK(tensors[1].initializer.kind == InitializerSpec::Kind::kZeros);
  CHECK(tensors[2].initializer.kind == InitializerSpec::Kind::kConstant);
  CHECK(tensors[2].initializer.value == 1);
  CHECK(tensors[4].initializer.kind == InitializerSpec::Kind::kGlorotUniform);
  CHECK(tensors[4].initializer.fan_in == 288);
  CHECK(tensors[4].initializer.fan_out == 3);
  CHECK(tensors[6].initializer.kind == InitializerSpec::Kind::kZeros);
  CHECK(tensors[7].initializer.value == 1);
  CHECK(tensors[7].statistic_momentum == Approx(0.8));
}

TEST_CASE("ResNet-20 for 32x32 images has 272,474 trainable parameters", "[model]") {
  std::vector<LayerConfig> layers;
  std::string last = "input";
  auto conv = [&](const std::string& name, std::int64_t filters, std::int64_t kernel, std::int64_t stride,
                  const std::string& from) {
    layers.push_back(
        ConvLayer(name, filters, {kernel, kernel}, {.stride = {stride, stride}, .use_bias = false}, {from}));
    layers.push_back(BatchNormLayer(name + "_bn"));
    return name + "_bn";
  };
  auto relu = [&](const std::string& name) {
    layers.push_back(Plain("relu", name));
    return name;
  };
  conv("stem", 16, 3, 1, "input");
  last = relu("stem_relu");
  for (int stage = 0; stage < 3; ++stage) {
    for (int block = 0; block < 3; ++block) {
      const std::string name = absl::StrCat("s", stage, "b", block);
      const std::int64_t filters = 16 << stage;
      const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      std::string shortcut = last;
      conv(name + "c1", filters, 3, stride, last);
      const std::string main = conv(name + "c2", filters, 3, 1, relu(name + "r1"));
      if (stride > 1) shortcut = conv(name + "proj", filters, 1, stride, last);
      layers.push_back(Plain("add", name + "sum", {main, shortcut}));
      last = relu(name + "r2");
    }
  }
  layers.push_back(Plain("global_avg_pool", "gap"));
  layers.push_back(DenseLayer("fc", 10));
  auto model = BuildFloat(ModelConfig{layers, {}}, {.input = {32, 32, 3}, .classes = 10});
  std::int64_t trainable = 0;
  for (const TensorSpec& tensor : model->tensors()) {
    if (!tensor.statistic) trainable += tensor.shape.elements();
  }
  CHECK(trainable == 272474);
  CHECK(model->output_shape() == Shape{10});
}

TEST_CASE("what does not fit is refused with the layer, the value and what would be right", "[model]") {
  using Catch::Contains;
  const LayerConfig out = DenseLayer("out", 3);
  CHECK_THAT(BuildError({}, {4}), Contains("[model] has no layers"));
  CHECK_THAT(BuildError({Plain("flatten", "f")}, {4}), Contains("no layer has parameters"));
  CHECK_THAT(BuildError({DenseLayer("d", 3)}, {28, 28, 1}),
             Contains("[dense d] input is [28,28,1] a sample") && Contains("flatten"));
  CHECK_THAT(BuildError({ConvLayer("c1", 4, {5, 5}, {.padding = "valid"}), out}, {3, 3, 1}),
             Contains("[conv2d c1] kernel 5x5 is larger than the padded input 3x3"));
  CHECK_THAT(BuildError({ConvLayer("c1", 4, {3, 3})}, {28, 28}),
             Contains("[conv2d c1] input is [28,28]") && Contains("reshape"));
  CHECK_THAT(BuildError({ConvLayer("c1", 4, {3, 3}, {.groups = 2})}, {8, 8, 3}),
             Contains("3 channels, which 2 groups"));
  CHECK_THAT(BuildError({ConvLayer("c1", 3, {3, 3}, {.groups = 2})}, {8, 8, 4}),
             Contains("filters is 3 and groups is 2"));
  CHECK_THAT(BuildError({ConvLayer("c1", 3, {3})}, {8, 8, 4}), Contains("kernel is [3]; [height, width]"));
  CHECK_THAT(BuildError({PoolLayer("max_pool", "p", {2, 2}, {2, 2}, "explicit", {2, 0, 0, 0}), out}, {8, 8, 4}),
             Contains("[max_pool p]") && Contains("padding only"));
  CHECK_THAT(BuildError({DenseLayer("a", 3), DenseLayer("b", 4), Plain("add", "s", {"a", "b"})}, {4}),
             Contains("[add s] input 1 is [4], input 0 is [3]"));
  CHECK_THAT(BuildError({Plain("concat", "s", {"input"})}, {4}), Contains("[concat s] has one input"));
  CHECK_THAT(BuildError({ConvLayer("a", 3, {1, 1}), ConvLayer("b", 3, {1, 1}, {.stride = {2, 2}}),
                         Plain("concat", "s", {"a", "b"})},
                        {4, 4, 1}),
             Contains("[concat s] input 1 is [2,2,3]") && Contains("last axis"));
  CHECK_THAT(BuildError({DenseLayer("a", 3, "swish")}, {4}), Contains("activation is 'swish'"));
  CHECK_THAT(BuildError({DenseLayer("a", 0)}, {4}), Contains("units is 0"));
  CHECK_THAT(BuildError({DropoutLayer("d", 1), out}, {4}), Contains("[dropout d] rate is 1"));
  CHECK_THAT(BuildError({ReshapeLayer("r", {3, -1}), Plain("flatten", "f"), out}, {4}),
             Contains("[reshape r] shape [3,-1] does not fit the input [4]"));
  CHECK_THAT(BuildError({Plain("desne", "d"), out}, {4}), Contains("no layer type 'desne'") && Contains("dense, "));
  CHECK_THAT(BuildError({DenseLayer("a", 3), DenseLayer("a", 3)}, {4}), Contains("the name 'a' is taken"));
  CHECK_THAT(BuildError({DenseLayer("a", 3, "none", {"later"}), DenseLayer("later", 3)}, {4}),
             Contains("input 'later'"));
  CHECK_THAT(BuildError({DenseLayer("a", 3), DenseLayer("b", 3, "none", {"input"})}, {4}),
             Contains("[dense a] its output goes nowhere"));
  CHECK_THAT(BuildError({DenseLayer("a", 3), Plain("relu", "r", {"a", "input"})}, {4}),
             Contains("[relu r] has 2 inputs"));
  LayerConfig broken = DenseLayer("a", 3);
  broken.attributes["units"] = std::string("many");
  CHECK_THAT(BuildError({broken}, {4}), Contains("[dense a] attribute 'units' is \"many\"; an integer is wanted"));
  broken.attributes.erase("units");
  CHECK_THAT(BuildError({broken}, {4}), Contains("attribute 'units' is missing"));
}

TEST_CASE("only dense layers take sparse input", "[model]") {
  using Catch::Contains;
  ModelOptions sparse{.sparse = true};
  CHECK_THAT(BuildError({Plain("relu", "r"), DenseLayer("out", 3)}, {9}, {}, sparse),
             Contains("[relu r] takes dense input only"));
  CHECK_THAT(BuildError({DenseLayer("a", 9), Plain("add", "s", {"a", "input"})}, {9}, {}, sparse), Contains("[add s]"));
}

TEST_CASE("a loss refuses outputs and labels that it can't compare", "[model]") {
  using Catch::Contains;
  auto error = [](std::int64_t outputs, const std::string& loss, std::int64_t width, std::int64_t classes = 0) {
    return BuildError({DenseLayer("out", outputs)}, {4}, LossOf(loss), {.label_width = width, .classes = classes});
  };
  CHECK_THAT(error(1, "softmax_cross_entropy", 1),
             Contains("[loss softmax_cross_entropy] the last layer, dense out, gives [1]"));
  CHECK_THAT(error(3, "softmax_cross_entropy", 3), Contains("one class index a label"));
  CHECK_THAT(error(3, "softmax_cross_entropy", 1, 10), Contains("(10 or more)"));
  CHECK_THAT(error(2, "sigmoid_cross_entropy", 1), Contains("as many outputs as label columns"));
  CHECK_THAT(error(2, "mse", 1), Contains("[loss mse]"));
  CHECK_THAT(error(1, "huber", 2), Contains("[loss huber]"));
  CHECK_THAT(error(2, "hinge", 1, 3), Contains("[loss hinge]"));
  CHECK_THAT(error(2, "hnige", 1), Contains("[loss hnige] there is no such loss"));
  CHECK_THAT(BuildError({ConvLayer("c", 3, {1, 1})}, {4, 4, 1}), Contains("one axis of outputs is wanted"));
}

}  // namespace
}  // namespace evenkeel::model_test
