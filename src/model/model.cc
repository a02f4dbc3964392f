#include "evenkeel/model/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "model/executor.h"
#include "model/graph.h"

namespace evenkeel {

struct Model::State {
  State(Graph built, ModelOptions given, const LossSpec& loss, Backend& on)
      : backend(on), options(std::move(given)), graph(std::move(built)), executor(graph, options, loss, on) {}

  Backend& backend;
  const ModelOptions options;
  const Graph graph;
  Executor executor;
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

absl::StatusOr<std::unique_ptr<Model>> Model::Build(const ModelConfig& config, const ModelOptions& options,
                                                    Backend& backend) {
  EK_ASSIGN_OR_RETURN(Graph graph, BuildGraph(config, options));
  EK_ASSIGN_OR_RETURN(LossSpec loss, MakeLoss(config.loss, graph.values.back(), graph.nodes.back().label, options));
  return std::unique_ptr<Model>(new Model(std::make_unique<State>(std::move(graph), options, loss, backend)));
}

std::span<const TensorSpec> Model::tensors() const { return state_->graph.tensors; }

const Shape& Model::output_shape() const { return state_->graph.values.back(); }

absl::Status Model::Bind(std::span<void* const> parameters, std::span<void* const> gradients) {
  EK_RETURN_IF_ERROR(state_->executor.Bind(parameters, gradients));
  state_->backend.WeightsChanged();
  return absl::OkStatus();
}

void Model::ParametersChanged() { state_->backend.WeightsChanged(); }

Model::HeldMemory Model::held_memory() const {
  const Executor& executor = state_->executor;
  return {executor.capacity(), static_cast<std::int64_t>(executor.held_bytes()) + state_->backend.scratch_bytes()};
}

void Model::Observe(LayerObserver* observer) { state_->executor.Observe(observer); }

absl::StatusOr<StepResult> Model::TrainStep(const ModelInput& input, const std::function<void(int)>& gradient_ready,
                                            const std::function<absl::Status(int)>& parameter_needed) {
  Executor& executor = state_->executor;
  if (!executor.has_gradients()) {
    return absl::FailedPreconditionError("[model] a training step needs parameters and gradients bound first");
  }
  if (input.labels.empty()) return absl::InvalidArgumentError("[model] a training step needs labels");
  EK_RETURN_IF_ERROR(executor.Load(input));
  EK_RETURN_IF_ERROR(executor.Forward(/*training=*/true, gradient_ready, parameter_needed));
  EK_RETURN_IF_ERROR(executor.Loss(/*with_gradient=*/true));
  EK_RETURN_IF_ERROR(executor.Backward(gradient_ready));
  EK_ASSIGN_OR_RETURN(const auto losses, executor.SumLosses());
  StepResult result;
  result.loss_sum = losses.first;
  result.samples = input.batch;
  result.non_finite = losses.second + executor.non_finite();
  if (result.non_finite > 0) {
    result.non_finite_layer = executor.non_finite_layer().empty() ? "loss" : executor.non_finite_layer();
  }
  return result;
}

absl::StatusOr<double> Model::Predict(const ModelInput& input, std::vector<float>& outputs) {
  Executor& executor = state_->executor;
  if (!executor.has_parameters()) {
    return absl::FailedPreconditionError("[model] a prediction needs parameters bound first");
  }
  EK_RETURN_IF_ERROR(executor.Load(input));
  EK_RETURN_IF_ERROR(executor.Forward(/*training=*/false, nullptr));
  EK_RETURN_IF_ERROR(executor.ReadOutputs(outputs));
  if (input.labels.empty()) return 0.0;
  EK_RETURN_IF_ERROR(executor.Loss(/*with_gradient=*/false));
  EK_ASSIGN_OR_RETURN(const auto losses, executor.SumLosses());
  return losses.first;
}

}  // namespace evenkeel
