#include "evaluator/checkpoint_scorer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/layout.h"

namespace evenkeel {

CheckpointScorer::CheckpointScorer(Experiment experiment, std::string data_folder, int threads)
    : experiment_(std::move(experiment)), data_folder_(std::move(data_folder)), threads_(threads) {}

absl::Status CheckpointScorer::Prepare(const Manifest& manifest) {
  if (statistics_json_ != manifest.data_statistics_json) EK_RETURN_IF_ERROR(Open(manifest));
  return CompareTensors(manifest);
}

absl::Status CheckpointScorer::Open(const Manifest& manifest) {
  batches_.reset();  // reads the set that goes now
  model_.reset();
  statistics_json_.reset();
  EK_ASSIGN_OR_RETURN(data_, OpenEvalData(experiment_.input, data_folder_, manifest.data_statistics_json));
  if (!backend_) {
    if (experiment_.train.backend == "reference") {
      backend_ = MakeReferenceBackend(DType::kFloat32);
    } else {
      EK_ASSIGN_OR_RETURN(backend_, MakeCpuBackend(CpuBackendOptions{threads_}));
    }
  }
  const ExampleSpec& spec = data_.dataset->spec();
  EK_ASSIGN_OR_RETURN(
      model_, Model::Build(experiment_.model, ModelOptions{spec.features, spec.label_width, spec.sparse, spec.classes},
                           *backend_));
  EK_RETURN_IF_ERROR(CompareTensors(manifest));

  std::vector<TensorSpec> tensors(model_->tensors().begin(), model_->tensors().end());
  // Offsets depend neither on the buckets nor on the servers.
  EK_ASSIGN_OR_RETURN(const ParameterLayout layout,
                      ParameterLayout::Create(std::move(tensors), experiment_.train.bucket_bytes, 1));
  EK_ASSIGN_OR_RETURN(parameters_, Arena::Allocate(static_cast<std::size_t>(layout.total_floats()) * sizeof(float)));
  offsets_.clear();
  std::vector<void*> pointers;
  for (const TensorPlace& place : layout.places()) {
    offsets_.push_back(place.offset);
    pointers.push_back(parameters_.floats().data() + place.offset);
  }
  EK_RETURN_IF_ERROR(model_->Bind(pointers, {}));

  MetricsOptions metrics;
  metrics.metrics = experiment_.eval.metrics;
  metrics.loss = experiment_.model.loss.type;
  metrics.outputs = model_->output_shape().elements();
  metrics.label_width = spec.label_width;
  metrics.samples = data_.dataset->size();
  EK_ASSIGN_OR_RETURN(metrics.label_scale, LabelScaleFrom(manifest.data_statistics_json));
  EK_ASSIGN_OR_RETURN(metrics_, Metrics::Create(metrics));
  batches_ = std::make_unique<BatchAhead>(*data_.dataset, experiment_.eval.batch_size);
  statistics_json_ = manifest.data_statistics_json;
  return absl::OkStatus();
}

absl::Status CheckpointScorer::CompareTensors(const Manifest& manifest) const {
  const std::span<const TensorSpec> own = model_->tensors();
  const auto other = [&](const std::string& difference) {
    return absl::InvalidArgumentError(absl::StrCat("[evaluator] checkpoint ", CheckpointName(manifest.version),
                                                   " is of another model than the experiment's: ", difference));
  };
  for (std::size_t i = 0; i < std::min(own.size(), manifest.tensors.size()); ++i) {
    const TensorSpec& theirs = manifest.tensors[i];
    if (theirs.name != own[i].name || theirs.shape != own[i].shape || theirs.statistic != own[i].statistic) {
      return other(absl::StrCat("its tensor ", i, " is ", theirs.name, " ", theirs.shape.ToString(),
                                theirs.statistic ? " (a statistic)" : "", ", the experiment's is ", own[i].name, " ",
                                own[i].shape.ToString(), own[i].statistic ? " (a statistic)" : ""));
    }
  }
  if (own.size() != manifest.tensors.size()) {
    return other(absl::StrCat("it has ", manifest.tensors.size(), " tensors, the experiment's has ", own.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckpointScorer::Load(const CheckpointReader& reader) {
  EK_RETURN_IF_ERROR(reader.Read("parameters", 0,
                                 parameters_.floats().first(static_cast<std::size_t>(reader.manifest().total_floats))));
  model_->ParametersChanged();
  return absl::OkStatus();
}

absl::StatusOr<MetricValues> CheckpointScorer::Evaluate(const std::function<bool()>& cancelled) {
  const ExampleSpec& spec = data_.dataset->spec();
  metrics_->Reset();
  batches_->Rewind();
  for (;;) {
    if (cancelled()) return absl::CancelledError("[evaluator] scoring was called off");
    EK_ASSIGN_OR_RETURN(const Batch* batch, batches_->Next());
    if (batch == nullptr) return metrics_->Values();
    ModelInput input;
    input.batch = batch->size();
    input.labels = batch->labels;
    CsrView sparse;
    if (spec.sparse) {
      sparse = CsrView{batch->size(), spec.features[0], batch->row_offsets, batch->columns, batch->values};
      input.sparse = &sparse;
    } else {
      input.features = batch->features;
    }
    EK_ASSIGN_OR_RETURN(const double loss_sum, model_->Predict(input, outputs_));
    metrics_->Add(outputs_, batch->labels, loss_sum);
  }
}

std::vector<NamedTensor> CheckpointScorer::tensors() const {
  std::vector<NamedTensor> tensors;
  const std::span<const TensorSpec> specs = model_->tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    tensors.push_back({specs[i].name, specs[i].shape,
                       parameters_.floats().subspan(static_cast<std::size_t>(offsets_[i]),
                                                    static_cast<std::size_t>(specs[i].shape.elements()))});
  }
  return tensors;
}

}  // namespace evenkeel
