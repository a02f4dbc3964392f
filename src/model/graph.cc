#include "model/graph.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/status.h"
#include "model/builtin_layers.h"

namespace evenkeel {
namespace {

constexpr char kInputName[] = "input";

class Builder {
 public:
  explicit Builder(const ModelOptions& options) : options_(options) {
    graph_.values.push_back(options.input);
    values_by_name_[kInputName] = kInputValue;
  }

  absl::Status AddLayer(const LayerConfig& config) {
    const std::string label = LayerLabel(config);
    if (config.name.empty()) return LayerError(label, "has no name");
    if (values_by_name_.contains(config.name)) {
      return LayerError(label, absl::StrCat("the name '", config.name,
                                            "' is taken; names must be unique, and 'input' "
                                            "is the model's input"));
    }
    EK_ASSIGN_OR_RETURN(std::vector<ValueId> inputs, ResolveInputs(config));
    EK_RETURN_IF_ERROR(AddNode(config, std::move(inputs)));
    // An activation inside a layer is a node of its own; the layer's name then stands for its output.
    if (config.type == "dense" || config.type == "conv2d") {
      EK_ASSIGN_OR_RETURN(const std::string activation, StringAttribute(config, "activation"));
      if (activation != "none") EK_RETURN_IF_ERROR(AddActivation(config, activation));
    }
    values_by_name_[config.name] = graph_.output();
    return absl::OkStatus();
  }

  absl::StatusOr<Graph> Finish() && {
    EK_RETURN_IF_ERROR(CheckAllUsed());
    EK_RETURN_IF_ERROR(FuseRelus());
    NumberTensors();
    MarkGradients();
    for (const TensorSpec& tensor : graph_.tensors) {
      if (!tensor.statistic) return std::move(graph_);
    }
    return absl::InvalidArgumentError("[model] no layer has parameters; at least one that can be trained is wanted");
  }

 private:
  absl::StatusOr<std::vector<ValueId>> ResolveInputs(const LayerConfig& config) const {
    if (config.inputs.empty()) return std::vector<ValueId>{graph_.output()};
    std::vector<ValueId> inputs;
    for (const std::string& name : config.inputs) {
      auto found = values_by_name_.find(name);
      if (found == values_by_name_.end()) {
        return LayerError(LayerLabel(config), absl::StrCat("input '", name,
                                                           "' is neither 'input' nor the name of an "
                                                           "earlier layer"));
      }
      inputs.push_back(found->second);
    }
    return inputs;
  }

  absl::Status AddActivation(const LayerConfig& config, const std::string& activation) {
    LayerConfig folded;
    folded.type = activation;
    folded.name = config.name;
    if (activation != "relu" && activation != "gelu" && activation != "tanh" && activation != "sigmoid") {
      return LayerError(LayerLabel(config),
                        absl::StrCat("activation is '", activation, "'; none, relu, gelu, tanh or sigmoid is wanted"));
    }
    return AddNode(folded, {graph_.output()});
  }

  absl::Status AddNode(const LayerConfig& config, std::vector<ValueId> inputs) {
    Node node;
    node.label = LayerLabel(config);
    node.name = config.name;
    node.inputs = std::move(inputs);
    node.wants_row_keys = config.type == "dropout" || !IsBuiltinLayer(config.type);
    EK_ASSIGN_OR_RETURN(node.layer, MakeLayer(config));
    EK_RETURN_IF_ERROR(Replan(node));
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      if (options_.sparse && node.inputs[k] == kInputValue && !(node.plan.accepts_sparse && k == 0)) {
        return LayerError(node.label,
                          "takes dense input only, and the model's input is sparse; put a dense layer "
                          "first or set input.sparse to false");
      }
    }
    for (std::int64_t dim : node.plan.output.dims()) {
      if (dim < 1) return LayerError(node.label, absl::StrCat("output would be ", node.plan.output.ToString()));
    }
    graph_.values.push_back(node.plan.output);
    graph_.nodes.push_back(std::move(node));
    return absl::OkStatus();
  }

  absl::Status CheckAllUsed() const {
    std::vector<bool> used(graph_.values.size(), false);
    used.back() = true;
    for (const Node& node : graph_.nodes) {
      for (ValueId input : node.inputs) used[static_cast<std::size_t>(input)] = true;
    }
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!used[i + 1]) {
        return LayerError(graph_.nodes[i].label, "its output goes nowhere; only the last layer's output may");
      }
    }
    return absl::OkStatus();
  }

  // A relu that alone reads the output of a layer that can apply it becomes part of that layer.
  absl::Status FuseRelus() {
    std::vector<int> readers(graph_.values.size(), 0);
    for (const Node& node : graph_.nodes) {
      for (ValueId input : node.inputs) ++readers[static_cast<std::size_t>(input)];
    }
    for (Node& node : graph_.nodes) {
      auto* relu = dynamic_cast<TakenRelu*>(node.layer.get());
      if (relu == nullptr || node.inputs[0] == kInputValue || readers[static_cast<std::size_t>(node.inputs[0])] != 1) {
        continue;
      }
      Node& before = graph_.nodes[static_cast<std::size_t>(ProducerOf(node.inputs[0]))];
      auto* taker = dynamic_cast<ReluTaker*>(before.layer.get());
      if (taker == nullptr || !relu->GiveUp()) continue;
      taker->TakeRelu();
      EK_RETURN_IF_ERROR(Replan(before));
      EK_RETURN_IF_ERROR(Replan(node));
    }
    return absl::OkStatus();
  }

  absl::Status Replan(Node& node) {
    std::vector<Shape> shapes;
    for (ValueId input : node.inputs) shapes.push_back(graph_.values[static_cast<std::size_t>(input)]);
    EK_ASSIGN_OR_RETURN(node.plan, node.layer->Plan(shapes));
    return absl::OkStatus();
  }

  void NumberTensors() {
    for (bool statistic : {false, true}) {
      for (Node& node : graph_.nodes) {
        node.tensors.resize(node.plan.parameters.size());
        for (std::size_t p = 0; p < node.plan.parameters.size(); ++p) {
          TensorSpec spec = node.plan.parameters[p];
          if (spec.statistic != statistic) continue;
          spec.name = absl::StrCat(node.name, "/", spec.name);
          if (statistic) spec.decay = false;
          node.tensors[p] = static_cast<int>(graph_.tensors.size());
          graph_.tensors.push_back(std::move(spec));
        }
      }
    }
  }

  void MarkGradients() {
    graph_.requires_gradient.assign(graph_.values.size(), false);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
      for (const TensorSpec& parameter : node.plan.parameters) node.has_backward |= !parameter.statistic;
      for (ValueId input : node.inputs) {
        if (graph_.requires_gradient[static_cast<std::size_t>(input)]) node.has_backward = true;
      }
      graph_.requires_gradient[i + 1] = node.has_backward;
    }
  }

  const ModelOptions& options_;
  Graph graph_;
  absl::flat_hash_map<std::string, ValueId> values_by_name_;
};

}  // namespace

absl::StatusOr<Graph> BuildGraph(const ModelConfig& config, const ModelOptions& options) {
  if (config.layers.empty()) return absl::InvalidArgumentError("[model] has no layers; at least one is wanted");
  if (options.input.rank() < 1 || options.input.elements() < 1) {
    return absl::InvalidArgumentError(absl::StrCat("[model] input is ", options.input.ToString(),
                                                   " a sample; at least one axis, none empty, is wanted"));
  }
  Builder builder(options);
  for (const LayerConfig& layer : config.layers) EK_RETURN_IF_ERROR(builder.AddLayer(layer));
  return std::move(builder).Finish();
}

absl::StatusOr<LossSpec> MakeLoss(const LossConfig& config, const Shape& outputs, const std::string& last_layer,
                                  const ModelOptions& options) {
  const std::string label = absl::StrCat("loss ", config.type);
  auto refuse = [&](std::string_view wanted) {
    return LayerError(label, absl::StrCat("the last layer, ", last_layer, ", gives ", outputs.ToString(),
                                          " a sample and a label "
                                          "has width ",
                                          options.label_width, "; ", std::string(wanted)));
  };
  LossSpec spec;
  spec.label_smoothing = config.label_smoothing;
  spec.huber_delta = config.huber_delta;
  if (outputs.rank() != 1) return refuse("one axis of outputs is wanted: end with flatten or dense");
  const std::int64_t k = outputs[0];
  const std::int64_t width = options.label_width;
  const bool one_per_class_fits = width == 1 && k >= options.classes;
  if (config.type == "softmax_cross_entropy") {
    spec.kind = LossKind::kSoftmaxCrossEntropy;
    if (k < 2 || !one_per_class_fits) {
      return refuse(absl::StrCat("one output a class (", std::max<std::int64_t>(options.classes, 2),
                                 " or more) and one class index a label are wanted"));
    }
  } else if (config.type == "sigmoid_cross_entropy") {
    spec.kind = LossKind::kSigmoidCrossEntropy;
    if (k != width || (k == 1 && options.classes > 2)) {
      return refuse("as many outputs as label columns are wanted (one for two classes)");
    }
  } else if (config.type == "mse" || config.type == "huber") {
    spec.kind = config.type == "mse" ? LossKind::kMse : LossKind::kHuber;
    if (k != width) return refuse("as many outputs as label columns are wanted");
    if (!(config.huber_delta > 0))
      return LayerError(label, absl::StrCat("huber_delta is ", config.huber_delta, "; above 0 is wanted"));
  } else if (config.type == "hinge") {
    spec.kind = LossKind::kHinge;
    if (width != 1 || (k == 1 ? options.classes > 2 : !one_per_class_fits)) {
      return refuse("one output for two classes, or one output a class, is wanted");
    }
  } else {
    return LayerError(label, absl::StrCat("there is no such loss; known are softmax_cross_entropy, "
                                          "sigmoid_cross_entropy, mse, huber, hinge"));
  }
  return spec;
}

Shape LabelShape(const LossSpec& loss, std::int64_t batch, std::int64_t outputs) {
  if (loss.kind == LossKind::kSoftmaxCrossEntropy || loss.kind == LossKind::kHinge) return Shape{batch};
  return Shape{batch, outputs};
}

}  // namespace evenkeel
