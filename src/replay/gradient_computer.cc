#include "replay/gradient_computer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "evenkeel/core/status.h"

namespace evenkeel::replay {
namespace {

constexpr char kThreads[] = " threads:";

}  // namespace

int ThreadsOf(const std::string& fingerprint) {
  const std::size_t at = fingerprint.find(kThreads);
  if (at == std::string::npos) return 1;
  absl::string_view number = absl::string_view(fingerprint).substr(at + sizeof kThreads - 1);
  number = number.substr(0, number.find(' '));
  int threads = 1;
  return absl::SimpleAtoi(number, &threads) && threads >= 1 && threads <= 256 ? threads : 1;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackendLike(const std::string& fingerprint, const TrainConfig& train) {
  const bool reference = fingerprint.empty() ? train.backend == "reference" : fingerprint.starts_with("reference");
  if (reference) return MakeReferenceBackend(DType::kFloat32);
  return MakeCpuBackend(CpuBackendOptions{ThreadsOf(fingerprint)});
}

absl::StatusOr<std::unique_ptr<GradientComputer>> GradientComputer::Create(const Experiment& experiment,
                                                                           const Dataset& dataset,
                                                                           const ParameterLayout& layout,
                                                                           std::unique_ptr<Backend> backend) {
  std::unique_ptr<GradientComputer> computer(new GradientComputer(experiment, dataset, std::move(backend)));
  const ExampleSpec& spec = dataset.spec();
  EK_ASSIGN_OR_RETURN(
      computer->model_,
      Model::Build(experiment.model, ModelOptions{spec.features, spec.label_width, spec.sparse}, *computer->backend_));
  const auto bytes = static_cast<std::size_t>(layout.total_floats()) * sizeof(float);
  EK_ASSIGN_OR_RETURN(computer->parameters_, Arena::Allocate(bytes));
  EK_ASSIGN_OR_RETURN(computer->gradients_, Arena::Allocate(bytes));
  std::vector<void*> parameters, gradients;
  for (const TensorPlace& place : layout.places()) {
    parameters.push_back(computer->parameters_.floats().data() + place.offset);
    gradients.push_back(computer->gradients_.floats().data() + place.offset);
  }
  EK_RETURN_IF_ERROR(computer->model_->Bind(parameters, gradients));
  return computer;
}

absl::StatusOr<StepResult> GradientComputer::Compute(const CommittedUpdate& update, const ParameterLayout& striped,
                                                     std::span<const std::shared_ptr<const FlatVector>> versions) {
  EK_CHECK(versions.size() == striped.servers());
  const std::span<float> parameters = parameters_.floats();
  for (std::size_t b = 0; b < striped.buckets().size(); ++b) {
    for (std::size_t s = 0; s < versions.size(); ++s) {
      const Stripe& stripe = striped.StripeOf(static_cast<int>(b), ServerIndex(static_cast<std::uint32_t>(s)));
      std::copy_n(versions[s]->begin() + stripe.begin, stripe.size(), parameters.begin() + stripe.begin);
    }
  }
  const TrainConfig& train = experiment_.train;
  const AugmentOptions augment{train.seed, experiment_.input.flip_horizontal, experiment_.input.crop_padding};
  EK_RETURN_IF_ERROR(AssembleBatch(dataset_, augment, update.epoch, update.positions, batch_));
  MixRowKeys(batch_, train.seed, row_keys_);
  ModelInput input;
  input.batch = batch_.size();
  CsrView sparse;
  if (dataset_.spec().sparse) {
    sparse = CsrView{batch_.size(), dataset_.spec().features[0], batch_.row_offsets, batch_.columns, batch_.values};
    input.sparse = &sparse;
  } else {
    input.features = batch_.features;
  }
  input.labels = batch_.labels;
  input.row_keys = row_keys_;
  model_->ParametersChanged();
  return model_->TrainStep(input, [](int) {});
}

}  // namespace evenkeel::replay
