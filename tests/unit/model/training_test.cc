// Steps and predictions: what is summed, when gradients are ready, and what happens with odd input.
#include <cmath>
#include <limits>
#include <numeric>

#include "evenkeel/core/status.h"
#include "unit/model/model_harness.h"

namespace evenkeel::model_test {
namespace {

const ModelOptions kImageOptions{.input = {4, 4, 2}};

ModelConfig ImageModel(bool batch_norm) {
  ModelConfig config;
  config.layers = {ConvLayer("c1", 3, {3, 3}, {.activation = "relu"})};
  if (batch_norm) config.layers.push_back(BatchNormLayer("bn"));
  config.layers.insert(config.layers.end(),
                       {PoolLayer("max_pool", "p", {2, 2}, {2, 2}), DropoutLayer("drop", 0.25), Plain("flatten", "f"),
                        LayerNormLayer("ln"), DenseLayer("fc", 5, "gelu"), DenseLayer("out", 3)});
  return config;
}

Batch ImageBatch(std::uint64_t seed, std::int64_t size) {
  return RandomBatch(seed, size, kImageOptions, Labels::kClasses, 3);
}

TEST_CASE("a batch's gradients are the sums of its samples' gradients", "[model]") {
  auto harness = DoubleHarness(ImageModel(false), kImageOptions);
  const Batch batch = ImageBatch(3, 2);
  const StepResult both = harness->Step(batch);
  const auto sums = harness->gradients();
  const StepResult first = harness->Step(batch.Slice(0, 1));
  const auto first_gradients = harness->gradients();
  const StepResult second = harness->Step(batch.Slice(1, 2));
  CHECK(both.samples == 2);
  CHECK(both.loss_sum == Approx(first.loss_sum + second.loss_sum).epsilon(1e-12));
  for (std::size_t t = 0; t < sums.size(); ++t) {
    for (std::size_t i = 0; i < sums[t].size(); ++i) {
      REQUIRE(sums[t][i] == Approx(first_gradients[t][i] + harness->gradients()[t][i]).margin(1e-12));
    }
  }
}

TEST_CASE("gradients are ready once each: statistics in forward order, then the others from last to first", "[model]") {
  auto harness = DoubleHarness(ImageModel(true), kImageOptions);
  std::vector<int> order;
  std::vector<std::vector<double>> seen(harness->gradients().size());
  harness->Step(ImageBatch(4, 3), [&](int i) {
    order.push_back(i);
    seen[static_cast<std::size_t>(i)] = harness->gradients()[static_cast<std::size_t>(i)];
  });
  const int total = static_cast<int>(harness->gradients().size());
  const int trainable = total - 2;
  std::vector<int> expected;
  for (int i = trainable; i < total; ++i) expected.push_back(i);
  for (int i = trainable - 1; i >= 0; --i) expected.push_back(i);
  CHECK(order == expected);
  CHECK(seen == harness->gradients());  // final when announced
}

TEST_CASE("a statistic's gradient is its batch value times the batch", "[model]") {
  ModelConfig config{{BatchNormLayer("bn"), DenseLayer("out", 2)}, {}};
  ModelOptions options{.input = {1}};
  auto harness = DoubleHarness(config, options);
  harness->Step(Batch{4, {1, 2, 3, 6}, {0, 1, 0, 1}, {}});
  CHECK(harness->Gradient("bn/moving_mean")[0] == Approx(4 * 3.0));
  CHECK(harness->Gradient("bn/moving_variance")[0] == Approx(4 * 3.5));  // biased: (4 + 1 + 0 + 9) / 4
}

TEST_CASE("a prediction uses moving statistics, drops nothing and leaves gradients alone", "[model]") {
  ModelConfig config{{BatchNormLayer("bn"), DropoutLayer("d", 0.5), DenseLayer("out", 1)}, LossOf("mse")};
  ModelOptions options{.input = {1}};
  auto harness = DoubleHarness(config, options);
  harness->Value("bn/gamma") = {2};
  harness->Value("bn/beta") = {1};
  harness->Value("bn/moving_mean") = {3};
  harness->Value("bn/moving_variance") = {4 - 1e-3};  // epsilon makes it 4
  harness->Value("out/weight") = {10};
  harness->Value("out/bias") = {0.5};
  double loss = -1;
  const std::vector<float> outputs = harness->Predict(Batch{2, {3, 7}, {10, 51.5}, {}}, &loss);
  CHECK(outputs[0] == Approx(10.5));
  CHECK(outputs[1] == Approx(50.5));
  CHECK(loss == Approx(0.25 + 1));
  CHECK(harness->Gradient("out/weight")[0] == -77);
  harness->Predict(Batch{1, {3}, {}, {}}, &loss);
  CHECK(loss == 0);
}

TEST_CASE("batch sizes may change from step to step, down to one, without a trace", "[model]") {
  auto harness = DoubleHarness(ImageModel(true), kImageOptions);
  std::uint64_t seed = 0;
  for (std::int64_t size : {3, 1, 5, 2, 6, 1, 40, 7}) {
    const Batch batch = ImageBatch(++seed, size);
    const StepResult result = harness->Step(batch);
    const std::vector<float> outputs = harness->Predict(batch);
    auto fresh = DoubleHarness(ImageModel(true), kImageOptions);
    INFO("batch " << size);
    REQUIRE(result.loss_sum == fresh->Step(batch).loss_sum);
    REQUIRE(harness->gradients() == fresh->gradients());
    REQUIRE(outputs == fresh->Predict(batch));
    REQUIRE(outputs.size() == static_cast<std::size_t>(size * 3));
  }
}

TEST_CASE("a model says for how many samples it holds memory, and how much", "[model]") {
  auto harness = DoubleHarness(ImageModel(true), kImageOptions);
  const auto held = [&harness] { return harness->model().held_memory(); };
  CHECK(held().samples == 0);
  CHECK(held().bytes == 0);
  harness->Step(ImageBatch(1, 8));
  const Model::HeldMemory few = held();
  CHECK(few.samples == 8);
  // The input alone, and the output of the convolution with its gradient.
  CHECK(few.bytes >= static_cast<std::int64_t>(8 * (4 * 4 * 2 + 2 * 4 * 4 * 3) * sizeof(double)));
  harness->Step(ImageBatch(2, 3));
  CHECK(held().bytes == few.bytes);
  harness->Step(ImageBatch(3, 800));
  CHECK(held().samples == 800);
  CHECK(held().bytes > 90 * few.bytes);
  CHECK(held().bytes < 110 * few.bytes);
}

TEST_CASE("dropout depends on the row's key and the layer, not on the row's place", "[model]") {
  ModelConfig config{{DropoutLayer("d1", 0.5), DenseLayer("out", 2, "none", {}, false)}, {}};
  ModelOptions options{.input = {64}};
  auto gradient = [&](const ModelConfig& model, const Batch& batch) {
    auto harness = DoubleHarness(model, options);
    for (double& value : harness->Value("out/weight")) value = 0;  // the gradient then shows the mask
    harness->Step(batch);
    return harness->Gradient("out/weight");
  };
  Batch batch{2, std::vector<float>(128, 1.0f), {0, 0}, {7, 8}};
  Batch swapped = batch;
  swapped.keys = {8, 7};
  CHECK(gradient(config, batch) == gradient(config, swapped));
  Batch other = batch;
  other.keys = {7, 9};
  CHECK(gradient(config, batch) != gradient(config, other));
  ModelConfig renamed = config;
  renamed.layers[0].name = "d2";
  CHECK(gradient(config, batch) != gradient(renamed, batch));
}

TEST_CASE("sparse rows give what the same dense rows give", "[model]") {
  ModelConfig config{{DenseLayer("a", 4, "tanh"), DenseLayer("out", 1)}, LossOf("hinge")};
  const std::vector<std::int64_t> offsets = {0, 2, 2, 3};
  const std::vector<std::int32_t> columns = {1, 4, 0};
  const std::vector<float> values = {0.5f, -2, 3};
  const CsrView csr{3, 5, offsets, columns, values};
  const Batch dense_batch{3, {0, 0.5f, 0, 0, -2, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0}, {1, 0, 1}, {}};
  auto dense = DoubleHarness(config, {.input = {5}});
  auto sparse = DoubleHarness(config, {.input = {5}, .sparse = true});
  const StepResult expected = dense->Step(dense_batch);
  const ModelInput input{3, {}, &csr, dense_batch.labels, {}};
  auto result = sparse->model().TrainStep(input, nullptr);
  REQUIRE(result.ok());
  CHECK(result->loss_sum == Approx(expected.loss_sum));
  for (std::size_t t = 0; t < dense->gradients().size(); ++t) {
    for (std::size_t i = 0; i < dense->gradients()[t].size(); ++i) {
      CHECK(sparse->gradients()[t][i] == Approx(dense->gradients()[t][i]).margin(1e-12));
    }
  }
  CHECK_FALSE(sparse->model().TrainStep(dense_batch.Input(), nullptr).ok());
  const CsrView narrow{3, 4, offsets, {}, {}};
  CHECK_FALSE(sparse->model().TrainStep({3, {}, &narrow, dense_batch.labels, {}}, nullptr).ok());
}

TEST_CASE("non-finite losses and gradients are counted and the first layer in backward order is named", "[model]") {
  ModelConfig config{{DenseLayer("first", 2, "none", {}, false), DenseLayer("second", 1, "none", {}, false)},
                     LossOf("mse")};
  Harness<float> harness(config, {.input = {1}}, MakeReferenceBackend(DType::kFloat32));
  harness.Value("first/weight") = {1, 1};
  harness.Value("second/weight") = {1, 1};
  SECTION("none") {
    const StepResult result = harness.Step(Batch{1, {1}, {1}, {}});
    CHECK(result.non_finite == 0);
    CHECK(result.non_finite_layer.empty());
  }
  SECTION("a label that is not a number spoils everything from the last layer on") {
    const StepResult result = harness.Step(Batch{2, {1, 1}, {1, std::nanf("")}, {}});
    CHECK(result.non_finite == 1 + 2 + 2);
    CHECK(result.non_finite_layer == "second");
  }
  SECTION("a gradient that overflows in the first layer") {
    harness.Value("first/weight") = {0, 0};
    harness.Value("second/weight") = {1e30f, 1};
    const StepResult result = harness.Step(Batch{1, {1}, {-1e10f}, {}});
    CHECK(result.non_finite == 1);
    CHECK(result.non_finite_layer == "first");
  }
  SECTION("a loss that overflows alone") {
    const StepResult result = harness.Step(Batch{1, {1e-12f}, {1e25f}, {}});
    CHECK(result.non_finite == 1);
    CHECK(result.non_finite_layer == "loss");
  }
}

TEST_CASE("input of the wrong size is refused with both numbers", "[model]") {
  using Catch::Contains;
  auto harness = DoubleHarness(ImageModel(false), kImageOptions);
  auto message = [&](Batch batch) {
    auto result = harness->model().TrainStep(batch.Input(), nullptr);
    REQUIRE_FALSE(result.ok());
    return std::string(result.status().message());
  };
  Batch batch = ImageBatch(1, 2);
  batch.features.pop_back();
  CHECK_THAT(message(batch), Contains("got 63 features; a batch of 2 takes 64"));
  batch = ImageBatch(1, 2);
  batch.labels.push_back(0);
  CHECK_THAT(message(batch), Contains("got 3 labels; a batch of 2 takes 2"));
  batch.labels.clear();
  CHECK_THAT(message(batch), Contains("needs labels"));
  batch = ImageBatch(1, 2);
  batch.keys.clear();
  CHECK_THAT(message(batch), Contains("[dropout drop] got 0 row keys for a batch of 2"));
  CHECK_THAT(message(Batch{}), Contains("labels"));
  CHECK_THAT(message(Batch{0, {}, {1}, {}}), Contains("batch is 0"));
}

TEST_CASE("a step asks for each parameter before a layer reads it, and an error ends it", "[model]") {
  auto harness = DoubleHarness(ImageModel(false), kImageOptions);
  Model& model = harness->model();
  const Batch batch = ImageBatch(1, 2);
  std::vector<int> asked, all(model.tensors().size());
  std::iota(all.begin(), all.end(), 0);
  bool backward = false;
  const auto ready = [&](int tensor) { backward |= !model.tensors()[static_cast<std::size_t>(tensor)].statistic; };
  const auto needed = [&](int tensor) {
    CHECK_FALSE(backward);
    asked.push_back(tensor);
    return absl::OkStatus();
  };
  REQUIRE(model.TrainStep(batch.Input(), ready, needed).ok());
  CHECK(backward);
  std::sort(asked.begin(), asked.end());
  CHECK(asked == all);
  backward = false;
  const auto late = [](int tensor) { return tensor == 2 ? absl::DeadlineExceededError("late") : absl::OkStatus(); };
  CHECK(model.TrainStep(batch.Input(), ready, late).status() == absl::DeadlineExceededError("late"));
  CHECK_FALSE(backward);
}

TEST_CASE("nothing runs before tensors are bound, and bound they must be all", "[model]") {
  auto backend = MakeReferenceBackend(DType::kFloat32);
  auto model = BuildOrFail(ModelConfig{{DenseLayer("out", 2)}, {}}, {.input = {1}}, *backend);
  const Batch batch{1, {1}, {0}, {}};
  std::vector<float> outputs;
  CHECK(model->TrainStep(batch.Input(), nullptr).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(model->Predict(batch.Input(), outputs).status().code() == absl::StatusCode::kFailedPrecondition);
  std::vector<float> weight = {1, -1}, bias = {0, 0};
  std::vector<void*> values = {weight.data()};
  CHECK(model->Bind(values, {}).code() == absl::StatusCode::kInvalidArgument);
  values.push_back(bias.data());
  REQUIRE(model->Bind(values, {}).ok());
  CHECK(model->Predict(batch.Input(), outputs).ok());
  CHECK(outputs == weight);
  CHECK(model->TrainStep(batch.Input(), nullptr).status().code() == absl::StatusCode::kFailedPrecondition);
}

// y = factor * gain * x, with a trainable factor a feature: the smallest layer that a user would write.
class ScaleLayer final : public Layer {
 public:
  explicit ScaleLayer(double gain) : gain_(gain) {}
  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    LayerPlan plan;
    plan.output = inputs[0];
    TensorSpec factor;
    factor.name = "factor";
    factor.shape = Shape{inputs[0].elements()};
    plan.parameters.push_back(factor);
    return plan;
  }
  absl::Status Forward(LayerContext& context) override {
    CHECK(context.row_keys.size() == (context.training ? static_cast<std::size_t>(context.batch) : 0));
    Walk(context, [&](std::size_t at, std::size_t feature) {
      context.output.as<double>()[at] =
          gain_ * context.parameters[0].as<double>()[feature] * context.inputs[0].as<double>()[at];
    });
    return absl::OkStatus();
  }
  absl::Status Backward(LayerContext& context) override {
    for (double& gradient : context.parameter_gradients[0].as<double>()) gradient = 0;
    Walk(context, [&](std::size_t at, std::size_t feature) {
      const double dy = context.output_gradient.as<double>()[at];
      context.parameter_gradients[0].as<double>()[feature] += gain_ * dy * context.inputs[0].as<double>()[at];
      if (context.input_gradients[0].data == nullptr) return;
      context.input_gradients[0].as<double>()[at] = gain_ * context.parameters[0].as<double>()[feature] * dy;
    });
    return absl::OkStatus();
  }

 private:
  static void Walk(const LayerContext& context, const std::function<void(std::size_t, std::size_t)>& visit) {
    const auto features = static_cast<std::size_t>(context.parameters[0].elements());
    for (std::size_t at = 0; at < features * static_cast<std::size_t>(context.batch); ++at) visit(at, at % features);
  }
  const double gain_;
};

TEST_CASE("a registered layer trains like a built-in one", "[model]") {
  static const absl::Status registered =
      RegisterLayer("test_scale", [](const LayerConfig& config) -> absl::StatusOr<std::unique_ptr<Layer>> {
        EK_ASSIGN_OR_RETURN(double gain, FloatAttribute(config, "gain"));
        return std::make_unique<ScaleLayer>(gain);
      });
  REQUIRE(registered.ok());
  CHECK(RegisterLayer("test_scale", nullptr).code() == absl::StatusCode::kAlreadyExists);
  CHECK(RegisterLayer("dense", nullptr).code() == absl::StatusCode::kAlreadyExists);

  LayerConfig scale = Plain("test_scale", "s");
  scale.attributes["gain"] = std::int64_t{2};
  LayerConfig second = scale;
  second.name = "t";
  ModelConfig config{{scale, DenseLayer("a", 4, "tanh"), second, DenseLayer("out", 3)}, {}};
  ModelOptions options{.input = {3}};
  auto harness = DoubleHarness(config, options);
  CHECK(harness->IndexOf("s/factor") == 0);
  CheckGradients(*harness, RandomBatch(2, 3, options, Labels::kClasses, 3));
  Batch plain = RandomBatch(2, 3, options, Labels::kClasses, 3);
  plain.keys.clear();
  harness->Predict(plain);
}

}  // namespace
}  // namespace evenkeel::model_test
