#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/builtin_layers.h"

namespace evenkeel {
namespace {

using Factories = absl::flat_hash_map<std::string, LayerFactory>;

const Factories& Builtins() {
  static const auto* const factories = new Factories{
      {"dense", MakeDense},
      {"conv2d", MakeConv2d},
      {"max_pool", MakePool},
      {"avg_pool", MakePool},
      {"global_avg_pool", MakeGlobalAveragePool},
      {"batch_norm", MakeBatchNorm},
      {"layer_norm", MakeLayerNorm},
      {"dropout", MakeDropout},
      {"relu", MakeActivation},
      {"gelu", MakeActivation},
      {"tanh", MakeActivation},
      {"sigmoid", MakeActivation},
      {"flatten", MakeReshape},
      {"reshape", MakeReshape},
      {"add", MakeAdd},
      {"concat", MakeConcat},
  };
  return *factories;
}

Factories& Registered() {
  static auto* const factories = new Factories;
  return *factories;
}

std::string KnownTypes() {
  std::vector<std::string> names;
  for (const Factories* factories : {&Builtins(), static_cast<const Factories*>(&Registered())}) {
    for (const auto& [name, factory] : *factories) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return absl::StrJoin(names, ", ");
}

}  // namespace

bool IsBuiltinLayer(std::string_view type) { return Builtins().contains(std::string(type)); }

absl::Status RegisterLayer(const std::string& type, LayerFactory factory) {
  if (IsBuiltinLayer(type)) {
    return absl::AlreadyExistsError(
        absl::StrCat("[register_layer] '", type, "' is a built-in layer; choose another name"));
  }
  if (!Registered().emplace(type, std::move(factory)).second) {
    return absl::AlreadyExistsError(absl::StrCat("[register_layer] '", type, "' is registered already"));
  }
  return absl::OkStatus();
}

LayerOr MakeLayer(const LayerConfig& config) {
  for (const Factories* factories : {&Builtins(), static_cast<const Factories*>(&Registered())}) {
    if (auto found = factories->find(config.type); found != factories->end()) return found->second(config);
  }
  return LayerError(LayerLabel(config), absl::StrCat("there is no layer type '", config.type, "'; known are ",
                                                     KnownTypes(), "; a custom one must be registered first"));
}

}  // namespace evenkeel
