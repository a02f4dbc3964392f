// A user's program: a layer and a data source of its own, and a main that runs a whole job in one process.
//
//   spirals EXPERIMENT MODEL_DIR
#include <cmath>
#include <iostream>
#include <memory>
#include <numbers>
#include <thread>
#include <utility>
#include <vector>

#include "evenkeel/config/experiment.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/model/layer.h"
#include "evenkeel/runtime/chief_runner.h"
#include "evenkeel/runtime/ps_runner.h"
#include "evenkeel/transport/transports.h"
#include "evenkeel/worker/worker.h"

namespace {

using namespace evenkeel;

// y = sin(frequency * x), elementwise.
class Sine : public Layer {
 public:
  explicit Sine(double frequency) : frequency_(frequency) {}
  absl::StatusOr<LayerPlan> Plan(std::span<const Shape> inputs) override {
    LayerPlan plan;
    plan.output = inputs[0];
    return plan;
  }
  absl::Status Forward(LayerContext& context) override {
    const auto x = context.inputs[0].as<float>();
    const auto y = context.output.as<float>();
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(std::sin(frequency_ * x[i]));
    return absl::OkStatus();
  }
  absl::Status Backward(LayerContext& context) override {
    if (context.input_gradients[0].data == nullptr) return absl::OkStatus();
    const auto x = context.inputs[0].as<float>();
    const auto dy = context.output_gradient.as<float>();
    const auto dx = context.input_gradients[0].as<float>();
    for (std::size_t i = 0; i < dx.size(); ++i) {
      dx[i] = static_cast<float>(frequency_ * std::cos(frequency_ * x[i]) * dy[i]);
    }
    return absl::OkStatus();
  }

 private:
  double frequency_;
};

// Two intertwined spirals, points computed on demand.
class Spirals : public Dataset {
 public:
  explicit Spirals(std::int64_t points) : points_(points) {
    spec_.features = Shape{2};
    spec_.classes = 2;
  }
  const ExampleSpec& spec() const override { return spec_; }
  std::int64_t size() const override { return points_; }
  absl::Status Append(std::int64_t index, Batch& batch) const override {
    const auto label = static_cast<float>(index % 2);
    const double t = static_cast<double>(index / 2) / static_cast<double>(points_ / 2);
    const double angle = 3 * std::numbers::pi * t + label * std::numbers::pi;
    batch.features.push_back(static_cast<float>(t * std::cos(angle)));
    batch.features.push_back(static_cast<float>(t * std::sin(angle)));
    batch.labels.push_back(label);
    return absl::OkStatus();
  }

 private:
  ExampleSpec spec_;
  std::int64_t points_;
};

absl::Status Train(const std::string& file, const std::string& model_dir) {
  EK_RETURN_IF_ERROR(RegisterLayer("sine", [](const LayerConfig& config) -> absl::StatusOr<std::unique_ptr<Layer>> {
    EK_ASSIGN_OR_RETURN(const double frequency, FloatAttribute(config, "frequency"));
    return std::make_unique<Sine>(frequency);
  }));
  RegisterDataset("spirals",
                  [](const Attributes& attributes, bool, std::string_view) -> absl::StatusOr<std::unique_ptr<Dataset>> {
                    return std::make_unique<Spirals>(std::get<std::int64_t>(attributes.at("points")));
                  });
  EK_ASSIGN_OR_RETURN(const Experiment experiment, LoadExperiment(file, {}));

  const std::unique_ptr<Transport> transport = MakeInprocTransport();
  StopSource stop;
  std::vector<std::thread> members;
  std::vector<absl::Status> ended(3);
  ChiefRunnerOptions chief;
  chief.experiment = experiment;
  chief.listen_address = "chief:0";
  chief.model_dir = model_dir;
  chief.listed_workers = {"worker:0", "worker:1"};
  chief.on_listening = [&](int port) {
    const std::string address = "chief:" + std::to_string(port);
    members.emplace_back([&, address] {
      PsOptions ps;
      ps.name = "ps:0";
      ps.index = 0;
      ps.chief_address = address;
      ps.listen_address = "ps:0";
      ps.experiment_json = experiment.canonical_json;
      ps.spec_hash = experiment.spec_hash;
      ended[0] = RunPs(ps, *transport, Storage::Posix(), Clock::Real(), stop);
    });
    for (int i = 0; i < 2; ++i) {
      members.emplace_back([&, address, i] {
        WorkerOptions worker;
        worker.experiment = experiment;
        worker.name = "worker:" + std::to_string(i);
        worker.index = i;
        worker.chief_address = address;
        ended[static_cast<std::size_t>(1 + i)] = RunWorker(worker, *transport, Clock::Real(), stop);
      });
    }
  };
  absl::Status status = RunChief(chief, *transport, Storage::Posix(), Clock::Real(), stop);
  for (std::thread& member : members) member.join();
  for (const absl::Status& member : ended) status.Update(member);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: spirals EXPERIMENT MODEL_DIR\n";
    return 2;
  }
  evenkeel::InitLog("spirals", evenkeel::LogLevel::kInfo);
  const absl::Status status = Train(argv[1], argv[2]);
  if (!status.ok()) std::cerr << status << "\n";
  return static_cast<int>(evenkeel::ExitCodeFor(status));
}
