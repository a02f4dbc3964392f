#include "model/executor.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

std::size_t At(int index) { return static_cast<std::size_t>(index); }

absl::Status WrongSize(std::string_view what, std::size_t got, std::int64_t batch, std::int64_t width) {
  return absl::InvalidArgumentError(
      absl::StrCat("[model] got ", got, " ", std::string(what), "; a batch of ", batch, " takes ", batch * width));
}

}  // namespace

Executor::Executor(const Graph& graph, const ModelOptions& options, const LossSpec& loss, Backend& backend)
    : graph_(graph),
      options_(options),
      loss_spec_(loss),
      backend_(backend),
      dtype_(backend.dtype()),
      plan_(PlanMemory(graph, options.sparse, options.label_width)),
      contexts_(graph.nodes.size()),
      accumulations_(graph.nodes.size()),
      row_keys_(graph.nodes.size()),
      statistic_non_finite_(graph.nodes.size(), 0) {}

absl::Status Executor::Bind(std::span<void* const> parameters, std::span<void* const> gradients) {
  const std::size_t wanted = graph_.tensors.size();
  if (parameters.size() != wanted || (!gradients.empty() && gradients.size() != wanted)) {
    return absl::InvalidArgumentError(absl::StrCat("[model] bind got ", parameters.size(), " parameters and ",
                                                   gradients.size(), " gradients; ", wanted,
                                                   " of each are wanted, or no gradients"));
  }
  for (std::span<void* const> pointers : {parameters, gradients}) {
    if (std::find(pointers.begin(), pointers.end(), nullptr) != pointers.end()) {
      return absl::InvalidArgumentError("[model] bind got a null pointer");
    }
  }
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    LayerContext& context = contexts_[i];
    context.parameters.clear();
    context.parameter_gradients.clear();
    for (int tensor : graph_.nodes[i].tensors) {
      const Shape& shape = graph_.tensors[At(tensor)].shape;
      context.parameters.emplace_back(parameters[At(tensor)], shape, dtype_);
      context.parameter_gradients.push_back(Tensor{gradients.empty() ? nullptr : gradients[At(tensor)], shape, dtype_});
    }
  }
  has_parameters_ = true;
  has_gradients_ = !gradients.empty();
  return absl::OkStatus();
}

absl::Status Executor::CheckInput(const ModelInput& input) const {
  if (input.batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat("[model] batch is ", input.batch, "; at least 1 is wanted"));
  }
  if (options_.sparse != (input.sparse != nullptr) || (options_.sparse && !input.features.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("[model] takes ", options_.sparse ? "sparse" : "dense", " input, and only that, as it was built"));
  }
  if (options_.sparse) {
    if (input.sparse->rows != input.batch || input.sparse->columns_total != options_.input.elements()) {
      return absl::InvalidArgumentError(absl::StrCat("[model] sparse input is [", input.sparse->rows, ",",
                                                     input.sparse->columns_total, "]; ",
                                                     options_.input.WithBatch(input.batch).ToString(), " is wanted"));
    }
  } else if (static_cast<std::int64_t>(input.features.size()) != input.batch * options_.input.elements()) {
    return WrongSize("features", input.features.size(), input.batch, options_.input.elements());
  }
  if (!input.labels.empty() && static_cast<std::int64_t>(input.labels.size()) != input.batch * options_.label_width) {
    return WrongSize("labels", input.labels.size(), input.batch, options_.label_width);
  }
  if (!input.row_keys.empty() && static_cast<std::int64_t>(input.row_keys.size()) != input.batch) {
    return WrongSize("row keys", input.row_keys.size(), input.batch, 1);
  }
  return absl::OkStatus();
}

absl::Status Executor::Load(const ModelInput& input) {
  EK_RETURN_IF_ERROR(CheckInput(input));
  if (input.batch > capacity_) EK_RETURN_IF_ERROR(Reserve(input.batch));
  if (input.batch != batch_) SetBatch(input.batch);
  if (options_.sparse) {
    for (std::size_t i = 0; i < contexts_.size(); ++i) {
      if (graph_.nodes[i].inputs[0] == kInputValue) contexts_[i].sparse_input = input.sparse;
    }
  } else {
    EK_RETURN_IF_ERROR(CopyIn(input.features, features_));
  }
  if (!input.labels.empty()) EK_RETURN_IF_ERROR(CopyIn(input.labels, labels_));
  MixRowKeys(input.row_keys);
  return absl::OkStatus();
}

absl::Status Executor::Reserve(std::int64_t batch) {
  // Batches that grow step by step should not each bring a new block.
  const std::int64_t capacity = capacity_ == 0 ? batch : std::max(batch, capacity_ + capacity_ / 8);
  capacity_ = 0;
  batch_ = 0;
  memory_.reset();
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    absl::StatusOr<std::size_t> bytes = graph_.nodes[i].layer->WorkspaceBytes(backend_, capacity);
    if (!bytes.ok()) return Annotate(bytes.status(), graph_.nodes[i].label);
    plan_.buffers[At(plan_.workspace_buffers[i])].bytes = *bytes;
  }
  std::vector<std::size_t> sizes;
  for (const PlannedBuffer& buffer : plan_.buffers) {
    const std::int64_t elements = buffer.per_sample * capacity + buffer.fixed;
    sizes.push_back(static_cast<std::size_t>(elements) * SizeOf(dtype_) + buffer.bytes);
  }
  placement_ = PlaceBuffers(plan_.buffers, sizes);
  EK_ASSIGN_OR_RETURN(memory_, backend_.Allocate(placement_.total));
  capacity_ = capacity;
  WireMemory();
  return absl::OkStatus();
}

void* Executor::Address(int buffer) const {
  if (buffer < 0) return nullptr;
  return static_cast<std::byte*>(memory_->data()) + placement_.offsets[At(buffer)];
}

Tensor Executor::Batched(int buffer, const Shape& sample) const {
  return Tensor{Address(buffer), sample.WithBatch(capacity_), dtype_};
}

void Executor::WireMemory() {
  auto value = [&](ValueId id) { return Batched(plan_.value_buffers[At(id)], graph_.values[At(id)]); };
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    LayerContext& context = contexts_[i];
    const ValueId output = OutputOf(static_cast<int>(i));
    context.backend = &backend_;
    context.output = value(output);
    context.output_gradient = Batched(plan_.gradient_buffers[At(output)], graph_.values[At(output)]);
    context.saved = Address(plan_.saved_buffers[i]);
    context.workspace = Address(plan_.workspace_buffers[i]);
    context.inputs.clear();
    context.input_gradients.clear();
    accumulations_[i].clear();
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      const ValueId input = node.inputs[k];
      const GradientRoute& route = plan_.routes[i][k];
      context.inputs.push_back(value(input));
      context.input_gradients.push_back(Batched(route.written, graph_.values[At(input)]));
      if (route.accumulated_into >= 0) {
        accumulations_[i].push_back(
            {context.input_gradients.back(), Batched(route.accumulated_into, graph_.values[At(input)])});
      }
    }
  }
  features_ = value(kInputValue);
  outputs_ = value(graph_.output());
  output_gradient_ = Batched(plan_.gradient_buffers[At(graph_.output())], graph_.values[At(graph_.output())]);
  labels_ =
      Tensor{Address(plan_.labels), LabelShape(loss_spec_, capacity_, graph_.values[At(graph_.output())][0]), dtype_};
  losses_ = Tensor{Address(plan_.losses), Shape{capacity_}, dtype_};
}

void Executor::SetBatch(std::int64_t batch) {
  batch_ = batch;
  for (std::size_t i = 0; i < contexts_.size(); ++i) {
    LayerContext& context = contexts_[i];
    context.batch = batch;
    context.output.shape[0] = batch;
    context.output_gradient.shape[0] = batch;
    for (ConstTensor& input : context.inputs) input.shape[0] = batch;
    for (Tensor& gradient : context.input_gradients) gradient.shape[0] = batch;
    for (Accumulation& accumulation : accumulations_[i]) {
      accumulation.from.shape[0] = batch;
      accumulation.to.shape[0] = batch;
    }
  }
  for (Tensor* tensor : {&features_, &outputs_, &output_gradient_, &labels_, &losses_}) tensor->shape[0] = batch;
}

void Executor::MixRowKeys(std::span<const std::uint64_t> row_keys) {
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (!graph_.nodes[i].wants_row_keys) continue;
    const std::uint64_t layer = HashName(graph_.nodes[i].name);
    row_keys_[i].resize(row_keys.size());
    for (std::size_t row = 0; row < row_keys.size(); ++row) row_keys_[i][row] = MixKey(row_keys[row], layer);
    contexts_[i].row_keys = row_keys_[i];
  }
}

absl::Status Executor::CopyIn(std::span<const float> from, const Tensor& to) {
  if (dtype_ == DType::kFloat32) return backend_.CopyToDevice(std::as_bytes(from), to.data);
  staging_.assign(from.begin(), from.end());
  return backend_.CopyToDevice(std::as_bytes(std::span<const double>(staging_)), to.data);
}

absl::Status Executor::Finish(int node, std::size_t parameter, const GradientReady& ready) {
  absl::StatusOr<std::int64_t> count = backend_.CountNonFinite(contexts_[At(node)].parameter_gradients[parameter]);
  if (!count.ok()) return Annotate(count.status(), graph_.nodes[At(node)].label);
  const int tensor = graph_.nodes[At(node)].tensors[parameter];
  non_finite_ += *count;
  if (graph_.tensors[At(tensor)].statistic) {
    statistic_non_finite_[At(node)] += *count;
  } else if (*count > 0 && non_finite_layer_.empty()) {
    non_finite_layer_ = graph_.nodes[At(node)].name;
  }
  if (ready) ready(tensor);
  return absl::OkStatus();
}

absl::Status Executor::Forward(bool training, const GradientReady& ready, const ParameterNeeded& needed) {
  non_finite_ = 0;
  non_finite_layer_.clear();
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
    const Node& node = graph_.nodes[i];
    contexts_[i].training = training;
    if (needed) {
      for (const int tensor : node.tensors) EK_RETURN_IF_ERROR(needed(tensor));
    }
    EK_RETURN_IF_ERROR(Observed(node.name, LayerObserver::Pass::kForward,
                                [&] { return Annotate(node.layer->Forward(contexts_[i]), node.label); }));
    statistic_non_finite_[i] = 0;
    if (!training) continue;
    for (std::size_t p = 0; p < node.tensors.size(); ++p) {
      if (node.plan.parameters[p].statistic) EK_RETURN_IF_ERROR(Finish(static_cast<int>(i), p, ready));
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::Loss(bool with_gradient) {
  Tensor gradient = output_gradient_;
  if (!with_gradient) gradient.data = nullptr;
  return Observed("loss", LayerObserver::Pass::kForward,
                  [&] { return Annotate(backend_.Loss(loss_spec_, outputs_, labels_, losses_, gradient), "model"); });
}

absl::Status Executor::Backward(const GradientReady& ready) {
  for (std::size_t i = graph_.nodes.size(); i-- > 0;) {
    const Node& node = graph_.nodes[i];
    if (node.has_backward) {
      EK_RETURN_IF_ERROR(Observed(node.name, LayerObserver::Pass::kBackward, [&]() -> absl::Status {
        EK_RETURN_IF_ERROR(Annotate(node.layer->Backward(contexts_[i]), node.label));
        for (const Accumulation& accumulation : accumulations_[i]) {
          EK_RETURN_IF_ERROR(Annotate(backend_.Accumulate(accumulation.from, accumulation.to), node.label));
        }
        return absl::OkStatus();
      }));
      for (std::size_t p = node.tensors.size(); p-- > 0;) {
        if (!node.plan.parameters[p].statistic) EK_RETURN_IF_ERROR(Finish(static_cast<int>(i), p, ready));
      }
    }
    if (statistic_non_finite_[i] > 0 && non_finite_layer_.empty()) non_finite_layer_ = node.name;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<double, std::int64_t>> Executor::SumLosses() {
  std::pair<double, std::int64_t> result{0.0, 0};
  auto sum = [&](const auto& losses) {
    for (auto loss : losses) {
      result.first += static_cast<double>(loss);
      if (!std::isfinite(loss)) ++result.second;
    }
  };
  if (dtype_ == DType::kFloat32) {
    host_losses_.resize(static_cast<std::size_t>(batch_));
    EK_RETURN_IF_ERROR(backend_.CopyToHost(losses_.data, std::as_writable_bytes(std::span<float>(host_losses_))));
    sum(host_losses_);
  } else {
    staging_.resize(static_cast<std::size_t>(batch_));
    EK_RETURN_IF_ERROR(backend_.CopyToHost(losses_.data, std::as_writable_bytes(std::span<double>(staging_))));
    sum(staging_);
  }
  return result;
}

absl::Status Executor::ReadOutputs(std::vector<float>& outputs) {
  outputs.resize(static_cast<std::size_t>(outputs_.elements()));
  if (dtype_ == DType::kFloat32) {
    return backend_.CopyToHost(outputs_.data, std::as_writable_bytes(std::span<float>(outputs)));
  }
  staging_.resize(outputs.size());
  EK_RETURN_IF_ERROR(backend_.CopyToHost(outputs_.data, std::as_writable_bytes(std::span<double>(staging_))));
  std::transform(staging_.begin(), staging_.end(), outputs.begin(), [](double v) { return static_cast<float>(v); });
  return absl::OkStatus();
}

}  // namespace evenkeel
