#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "config/concat.h"
#include "config/json_text.h"
#include "config/rules.h"
#include "config/schema.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/status.h"
#include "experiment.pb.h"

namespace evenkeel::config_internal {
namespace {

using google::protobuf::FieldDescriptor;

absl::Status Invalid(std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(Concat(path, ": ", what));
}

const FieldDescriptor& KindOf(const config::Layer& layer) {
  return *layer.GetReflection()->GetOneofFieldDescriptor(layer, config::Layer::descriptor()->FindOneofByName("kind"));
}

absl::Status CheckName(const std::string& name, std::string_view path) {
  const bool allowed = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  });
  if (!allowed) return Invalid(path, Concat("'", name, "' may hold letters, digits, '_', '-' and '.' only"));
  if (name == "input") return Invalid(path, "'input' is the sample's own name; choose another");
  return absl::OkStatus();
}

absl::Status FillNames(config::Model& model, const std::string& list) {
  std::map<std::string, int> of_type;
  std::map<std::string, int> owners;
  for (int i = 0; i < model.layers_size(); ++i) {
    config::Layer& layer = *model.mutable_layers(i);
    const std::string path = FieldPath(ItemPath(list, i), "name");
    const std::string type = LayerType(layer);
    const int count = of_type[type]++;
    if (!layer.has_name()) layer.set_name(Concat(type, "_", count));
    EK_RETURN_IF_ERROR(CheckName(layer.name(), path));
    const auto [owner, first] = owners.emplace(layer.name(), i);
    if (!first) {
      return Invalid(path, Concat("'", layer.name(), "' is also the name of ", ItemPath(list, owner->second)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInputCount(const config::Layer& layer, const std::string& path) {
  if (layer.has_custom()) return absl::OkStatus();
  const int count = layer.inputs_size();
  if (layer.has_add() || layer.has_concat()) {
    if (count >= 2) return absl::OkStatus();
    return Invalid(path, Concat(LayerType(layer), " has one input; it takes two or more"));
  }
  if (count == 1) return absl::OkStatus();
  return Invalid(path, Concat(LayerType(layer), " has ", count, " inputs; it takes one"));
}

// Inputs name what stands before; what nobody takes would get no gradient.
absl::Status FillInputs(config::Model& model, const std::string& list) {
  std::vector<std::string> earlier = {"input"};
  std::set<std::string> used;
  for (int i = 0; i < model.layers_size(); ++i) {
    config::Layer& layer = *model.mutable_layers(i);
    const std::string path = FieldPath(ItemPath(list, i), "inputs");
    if (layer.inputs().empty()) layer.add_inputs(earlier.back());
    EK_RETURN_IF_ERROR(CheckInputCount(layer, path));
    for (const std::string& input : layer.inputs()) {
      used.insert(input);
      if (std::find(earlier.begin(), earlier.end(), input) != earlier.end()) continue;
      const bool later = std::any_of(model.layers().begin() + i, model.layers().end(),
                                     [&](const config::Layer& other) { return other.name() == input; });
      if (later) return Invalid(path, Concat("'", input, "' does not come before '", layer.name(), "'"));
      return Invalid(path, Concat("'", input, "' is no layer", NearestHint(input, earlier), "; before it come ",
                                  absl::StrJoin(earlier, ", ")));
    }
    earlier.push_back(layer.name());
  }
  for (int i = 0; i + 1 < model.layers_size(); ++i) {
    if (used.count(model.layers(i).name()) == 0) {
      return Invalid(ItemPath(list, i),
                     Concat("no layer takes the output of '", model.layers(i).name(), "', and it is not the last"));
    }
  }
  return absl::OkStatus();
}

template <typename Window>
absl::Status FillPadding(Window& window, const std::string& path) {
  const bool any = std::any_of(window.pads().begin(), window.pads().end(), [](std::int64_t pad) { return pad != 0; });
  if (!window.has_padding()) {
    window.set_padding(window.pads().empty() ? config::PADDING_VALID : config::PADDING_EXPLICIT);
  } else if (window.padding() == config::PADDING_EXPLICIT && window.pads().empty()) {
    return Invalid(FieldPath(path, "padding"), "'explicit' needs pads: [top, bottom, left, right]");
  } else if (window.padding() != config::PADDING_EXPLICIT && any) {
    return Invalid(FieldPath(path, "pads"),
                   Concat("go with padding 'explicit', not with '", EnumName(window, "padding"), "'"));
  }
  if (window.pads().empty()) {
    for (int i = 0; i < 4; ++i) window.add_pads(0);
  }
  return absl::OkStatus();
}

absl::Status CompletePool(config::Pool& pool, const std::string& path) {
  if (pool.stride().empty()) *pool.mutable_stride() = pool.kernel();
  EK_RETURN_IF_ERROR(FillPadding(pool, path));
  // A window that lies in the padding alone would have no maximum and no mean.
  for (int i = 0; i < 4; ++i) {
    if (pool.pads(i) >= pool.kernel(i / 2)) {
      return Invalid(FieldPath(path, "pads"),
                     Concat(pool.pads(i), " is out of range; allowed: below the kernel's ", pool.kernel(i / 2)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInitializer(const std::string& text, const std::string& path) {
  const auto spec = ParseInitializer(text);
  return spec.ok() ? absl::OkStatus()
                   : Invalid(FieldPath(path, "kernel_initializer"), std::string(spec.status().message()));
}

absl::Status CompleteConv2d(config::Conv2d& conv, const std::string& path) {
  EK_RETURN_IF_ERROR(FillPadding(conv, path));
  if (conv.filters() % conv.groups() != 0) {
    return Invalid(FieldPath(path, "filters"), Concat(conv.filters(), " is not a multiple of groups, ", conv.groups()));
  }
  return CheckInitializer(conv.kernel_initializer(), path);
}

absl::Status CheckReshape(const config::Reshape& reshape, const std::string& path) {
  const auto& shape = reshape.shape();
  if (std::count(shape.begin(), shape.end(), 0) > 0) {
    return Invalid(FieldPath(path, "shape"), "0 is out of range; allowed: at least 1, or -1 once");
  }
  if (std::count(shape.begin(), shape.end(), -1) > 1) return Invalid(FieldPath(path, "shape"), "more than one -1");
  return absl::OkStatus();
}

absl::Status CheckCustom(const config::Custom& custom, const std::string& path) {
  const FieldDescriptor* same = config::Layer::descriptor()->FindFieldByName(custom.type());
  if (same == nullptr || same->real_containing_oneof() == nullptr) return absl::OkStatus();
  return Invalid(FieldPath(path, "type"), Concat("'", custom.type(), "' is a built-in layer"));
}

absl::Status CompleteLayer(config::Layer& layer, const std::string& layer_path) {
  const std::string path = FieldPath(layer_path, KindOf(layer).name());
  switch (layer.kind_case()) {
    case config::Layer::kDense:
      return CheckInitializer(layer.dense().kernel_initializer(), path);
    case config::Layer::kConv2D:
      return CompleteConv2d(*layer.mutable_conv2d(), path);
    case config::Layer::kMaxPool:
      return CompletePool(*layer.mutable_max_pool(), path);
    case config::Layer::kAvgPool:
      return CompletePool(*layer.mutable_avg_pool(), path);
    case config::Layer::kReshape:
      return CheckReshape(layer.reshape(), path);
    case config::Layer::kCustom:
      return CheckCustom(layer.custom(), path);
    default:
      return absl::OkStatus();
  }
}

absl::Status CheckLoss(const config::Loss& loss) {
  const bool cross_entropy = loss.type() == config::Loss::TYPE_SOFTMAX_CROSS_ENTROPY ||
                             loss.type() == config::Loss::TYPE_SIGMOID_CROSS_ENTROPY;
  if (loss.label_smoothing() > 0 && !cross_entropy) {
    return Invalid("model.loss.label_smoothing",
                   Concat("goes with the cross-entropies, not with '", EnumName(loss, "type"), "'"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string LayerType(const config::Layer& layer) {
  return layer.has_custom() ? layer.custom().type() : KindOf(layer).name();
}

absl::Status CompleteModel(config::Model& model) {
  std::string list = "model.layers";
  if (!model.nodes().empty()) {
    if (!model.layers().empty()) return Invalid("model", "'layers' and 'nodes' are the same; give one");
    list = "model.nodes";
    model.mutable_layers()->Swap(model.mutable_nodes());
  }
  if (model.layers().empty()) return Invalid("model.layers", "at least one layer is required");
  for (int i = 0; i < model.layers_size(); ++i) {
    EK_RETURN_IF_ERROR(CompleteLayer(*model.mutable_layers(i), ItemPath(list, i)));
  }
  EK_RETURN_IF_ERROR(FillNames(model, list));
  EK_RETURN_IF_ERROR(FillInputs(model, list));
  return CheckLoss(model.loss());
}

}  // namespace evenkeel::config_internal
