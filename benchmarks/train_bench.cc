// How fast one worker trains: the whole step of a model (forward, backward, and the servers' optimizer step) on
// synthetic samples, with parameters read where the server publishes them and gradients written where it sums them, as
// in a job whose data path is shared memory.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench_options.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/thread_pool.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/ps/shard.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kBucketBytes = 1 << 30;  // so that every tensor lies whole in one
constexpr std::int64_t kClasses = 10;

template <class T>
T Need(absl::StatusOr<T> made) {
  if (made.ok()) return *std::move(made);
  std::fprintf(stderr, "train: %s\n", std::string(made.status().message()).c_str());
  std::exit(1);
}

void Need(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "train: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

// One of ResNet-20's blocks (He et al. 2016, section 4.2), with a projection where the shape changes.
void AddBlock(const std::string& name, const std::string& input, int filters, int stride, bool project,
              nlohmann::json& nodes) {
  const auto conv = [&](int kernel, int step) {
    return nlohmann::json{
        {"conv2d",
         {{"filters", filters}, {"kernel", kernel}, {"stride", step}, {"padding", "same"}, {"use_bias", false}}}};
  };
  const auto add = [&](nlohmann::json node, const std::string& part, std::vector<std::string> inputs) {
    node["name"] = name + part;
    node["inputs"] = std::move(inputs);
    nodes.push_back(std::move(node));
    return name + part;
  };
  const nlohmann::json norm{{"batch_norm", nlohmann::json::object()}}, relu{{"relu", nlohmann::json::object()}};
  std::string at = add(conv(3, stride), "_conv_1", {input});
  at = add(norm, "_norm_1", {at});
  at = add(relu, "_relu", {at});
  at = add(conv(3, 1), "_conv_2", {at});
  at = add(norm, "_norm_2", {at});
  std::string shortcut = input;
  if (project) shortcut = add(norm, "_short_norm", {add(conv(1, stride), "_short_conv", {input})});
  at = add({{"add", nlohmann::json::object()}}, "_add", {at, shortcut});
  add(relu, "", {at});
}

nlohmann::json ResNet20() {
  nlohmann::json nodes = nlohmann::json::array();
  nodes.push_back(
      {{"conv2d", {{"filters", 16}, {"kernel", 3}, {"padding", "same"}, {"use_bias", false}}}, {"name", "stem_conv"}});
  nodes.push_back({{"batch_norm", nlohmann::json::object()}, {"name", "stem_norm"}});
  nodes.push_back({{"relu", nlohmann::json::object()}, {"name", "stem"}});
  std::string at = "stem";
  for (int group = 0; group < 3; ++group) {
    for (int block = 0; block < 3; ++block) {
      const bool first = group > 0 && block == 0;
      const std::string name = absl::StrCat("g", group, "b", block);
      AddBlock(name, at, 16 << group, first ? 2 : 1, first, nodes);
      at = name;
    }
  }
  nodes.push_back({{"global_avg_pool", nlohmann::json::object()}, {"name", "pool"}, {"inputs", {at}}});
  nodes.push_back({{"dense", {{"units", kClasses}}}, {"name", "output"}});
  return {{"nodes", nodes}};
}

struct Case {
  Shape input;
  nlohmann::json model;
};

// Errors: an unknown name ends the program.
Case CaseOf(const std::string& name, const bench::Options& options) {
  const auto layers = [](const char* text) { return nlohmann::json{{"layers", nlohmann::json::parse(text)}}; };
  if (name == "mlp") {
    return {Shape{784}, layers(R"([{"dense": {"units": 512, "activation": "relu"}},
                                   {"dense": {"units": 512, "activation": "relu"}}, {"dense": {"units": 10}}])")};
  }
  if (name == "cnn") {
    return {Shape{32, 32, 3},
            layers(R"([{"conv2d": {"filters": 32, "kernel": 3, "activation": "relu", "padding": "same"}},
                                         {"conv2d": {"filters": 64, "kernel": 3, "activation": "relu", "padding": "same"}},
                                         {"max_pool": {"kernel": 2}}, {"flatten": {}},
                                         {"dense": {"units": 128, "activation": "relu"}}, {"dense": {"units": 10}}])")};
  }
  if (name == "resnet20") return {Shape{32, 32, 3}, ResNet20()};
  options.Refuse("there is no model '" + name + "'; there are mlp, cnn, resnet20");
}

Version At(std::uint64_t commit) { return Version{Generation(1), CommitNumber(commit)}; }

class Trainer {
 public:
  Trainer(const Case& chosen, std::int64_t batch, int threads) : batch_(batch), pool_(threads) {
    nlohmann::json experiment{
        {"name", "train"},
        {"model", chosen.model},
        {"input", {{"train", {{"idx", {{"images", "x"}, {"labels", "y"}}}}}, {"classes", kClasses}}},
        {"train",
         {{"epochs", 1},
          {"global_batch_size", batch},
          {"optimizer", {{"momentum", {{"momentum", 0.9}}}}},
          {"schedule", {{"learning_rate", 0.01}}}}}};
    experiment["model"]["loss"] = "softmax_cross_entropy";
    const Experiment parsed = Need(ParseExperiment(experiment.dump(), "benchmark", {}));
    backend_ = Need(MakeCpuBackend({threads}));
    model_ = Need(Model::Build(parsed.model, ModelOptions{chosen.input, 1, false, kClasses}, *backend_));
    const std::vector<TensorSpec> tensors(model_->tensors().begin(), model_->tensors().end());
    layout_ = std::make_shared<const ParameterLayout>(Need(ParameterLayout::Create(tensors, kBucketBytes, 1)));
    shard_ = Need(ps::Shard::Create({layout_, ServerIndex(0), parsed.train.optimizer, false}, pool_));
    shard_->Initialise(1, At(0));
    Need(shard_->AllocateSlot(ps::StageSlot(0)));

    Rng rng(1);
    features_ = Need(Arena::Allocate(static_cast<std::size_t>(batch * chosen.input.elements()) * sizeof(float)));
    for (float& value : features_.floats()) value = static_cast<float>(rng.NextNormal());
    for (std::int64_t i = 0; i < batch; ++i) {
      labels_.push_back(static_cast<float>(rng.Below(static_cast<std::uint64_t>(kClasses))));
      keys_.push_back(rng.NextU64());
    }
    input_elements_ = chosen.input.elements();
  }

  void Step() {
    const ps::PinnedVersion version = shard_->Newest();
    parameters_.clear();
    gradients_.clear();
    for (const TensorPlace& tensor : layout_->places()) {
      const auto [bucket, at] = PlaceOf(tensor);
      // The model only reads its parameters.
      parameters_.push_back(const_cast<float*>(shard_->StripeOf(version, bucket).data()) + at);
      gradients_.push_back(shard_->StageInto(ps::StageSlot(0), bucket).data() + at);
    }
    Need(model_->Bind(parameters_, gradients_));
    ModelInput input;
    input.batch = batch_;
    input.features =
        std::span<const float>(features_.floats()).first(static_cast<std::size_t>(batch_ * input_elements_));
    input.labels = labels_;
    input.row_keys = keys_;
    const StepResult result = Need(model_->TrainStep(input, nullptr));
    if (result.non_finite > 0) Need(absl::InternalError("the model diverged"));
    const ps::StageSlot slots[] = {ps::StageSlot(0)};
    shard_->Apply(Decision{.version = At(++commit_), .samples = batch_, .learning_rate = 0.01}, slots);
    loss_ = result.loss_sum / static_cast<double>(batch_);
  }

  void Observe(LayerObserver* observer) { model_->Observe(observer); }
  double loss() const { return loss_; }
  std::int64_t parameters() const { return layout_->parameter_floats(); }

 private:
  // Its bucket, which one server owns whole, and its place therein, floats.
  std::pair<int, std::int64_t> PlaceOf(const TensorPlace& tensor) const {
    for (std::size_t b = 0; b < layout_->buckets().size(); ++b) {
      const Bucket& bucket = layout_->buckets()[b];
      if (tensor.offset < bucket.begin || tensor.offset + tensor.count > bucket.end) continue;
      return {static_cast<int>(b), tensor.offset - bucket.begin};
    }
    Need(absl::InternalError("a tensor lies in no bucket"));
    return {};
  }

  const std::int64_t batch_;
  std::int64_t input_elements_ = 0;
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::shared_ptr<const ParameterLayout> layout_;  // shared with the shard
  std::unique_ptr<ps::Shard> shard_;
  Arena features_;
  std::vector<float> labels_;
  std::vector<std::uint64_t> keys_;
  std::vector<void*> parameters_, gradients_;
  std::uint64_t commit_ = 0;
  double loss_ = 0;
};

// Adds up what each layer takes.
class LayerTimes final : public LayerObserver {
 public:
  void Begins(std::string_view, Pass) override { begin_ = std::chrono::steady_clock::now(); }
  void Ended(std::string_view layer, Pass pass) override {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.layer == layer; });
    Row& row = found != rows_.end() ? *found : rows_.emplace_back(Row{std::string(layer), {}});
    row.passes[pass == Pass::kForward ? 0 : 1].push_back(seconds);
  }
  struct Row {
    std::string layer;
    std::array<std::vector<double>, 2> passes;  // forward, backward: seconds, a step each
  };
  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::chrono::steady_clock::time_point begin_;
  std::vector<Row> rows_;  // in the order of the forward pass
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

nlohmann::json Measure(const std::string& name, const Case& chosen, std::int64_t batch, int threads, double seconds,
                       bool layers) {
  Trainer trainer(chosen, batch, threads);
  for (int warm = 0; warm < 3; ++warm) trainer.Step();
  std::vector<double> steps;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (const auto begin = now(); std::chrono::duration<double>(now() - begin).count() < seconds;) {
    const auto from = now();
    trainer.Step();
    steps.push_back(std::chrono::duration<double>(now() - from).count());
  }
  const double median = Median(steps);
  nlohmann::json row{{"model", name},
                     {"threads", threads},
                     {"batch", batch},
                     {"parameters", trainer.parameters()},
                     {"steps", steps.size()},
                     {"step_seconds", median},
                     {"examples_per_second", static_cast<double>(batch) / median},
                     {"loss", trainer.loss()}};
  if (!layers) return row;
  LayerTimes times;
  trainer.Observe(&times);
  for (std::size_t step = 0; step < std::max<std::size_t>(steps.size(), 3); ++step) trainer.Step();
  for (const LayerTimes::Row& layer : times.rows()) {
    nlohmann::json passes{{"layer", layer.layer}, {"forward_seconds", Median(layer.passes[0])}};
    if (!layer.passes[1].empty()) passes["backward_seconds"] = Median(layer.passes[1]);
    row["layers"].push_back(std::move(passes));
  }
  return row;
}

void PrintLayers(const nlohmann::json& row) {
  for (const nlohmann::json& layer : row.value("layers", nlohmann::json::array())) {
    std::printf("  %-20s forward %8.3f ms  backward %8.3f ms\n", layer["layer"].get<std::string>().c_str(),
                1e3 * layer["forward_seconds"].get<double>(), 1e3 * layer.value("backward_seconds", 0.0));
  }
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
  using namespace evenkeel;
  TuneAllocator();
  bench::Options options("train", "training steps of one worker, with the optimizer",
                         {{"models", "mlp,cnn,resnet20",
                           "784-512-512-10; conv 3x3 32, 64, pool, fc 128, 10 on 32x32x3; "
                           "ResNet-20"},
                          {"threads", "1,2", "that compute"},
                          {"batch", "128", "samples of a step"},
                          {"milliseconds", "3000", "of each measurement"},
                          {"layers", "0", "1: also what each layer's passes take"},
                          {"json", "", "file for the table"}});
  options.Parse(argc, argv);
  const std::int64_t batch = options.Number("batch", 1, 1 << 16);
  const double seconds = static_cast<double>(options.Number("milliseconds", 1, 3'600'000)) * 1e-3;
  const bool layers = options.Number("layers", 0, 1) == 1;
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%-9s %7s %5s %10s %12s\n", "model", "threads", "batch", "step", "examples/s");
  for (const std::string& name : options.Texts("models")) {
    const Case chosen = CaseOf(name, options);
    for (const std::int64_t threads : options.Numbers("threads", 1, 256)) {
      rows.push_back(Measure(name, chosen, batch, static_cast<int>(threads), seconds, layers));
      std::printf("%-9s %7lld %5lld %7.2f ms %12.0f\n", name.c_str(), static_cast<long long>(threads),
                  static_cast<long long>(batch), 1e3 * rows.back()["step_seconds"].get<double>(),
                  rows.back()["examples_per_second"].get<double>());
      PrintLayers(rows.back());
      std::fflush(stdout);
    }
  }
  options.WriteJson(rows);
  return 0;
}
