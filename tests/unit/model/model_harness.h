// Small models by hand, bound to memory of their own and checked against central differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "evenkeel/core/random.h"
#include "evenkeel/model/model.h"

namespace evenkeel::model_test {

using Names = std::vector<std::string>;
using Ints = std::vector<std::int64_t>;

inline LayerConfig Plain(const std::string& type, const std::string& name, Names inputs = {}) {
  return LayerConfig{type, name, std::move(inputs), {}};
}

inline LayerConfig DenseLayer(const std::string& name, std::int64_t units, const std::string& activation = "none",
                              Names inputs = {}, bool use_bias = true) {
  return LayerConfig{"dense",
                     name,
                     std::move(inputs),
                     {{"units", units},
                      {"use_bias", use_bias},
                      {"activation", activation},
                      {"kernel_initializer", std::string("glorot_uniform")}}};
}

struct ConvOptions {
  Ints stride = {1, 1};
  std::string padding = "same";
  Ints pads = {0, 0, 0, 0};
  std::int64_t groups = 1;
  bool use_bias = true;
  std::string activation = "none";
};
inline LayerConfig ConvLayer(const std::string& name, std::int64_t filters, Ints kernel, ConvOptions options = {},
                             Names inputs = {}) {
  return LayerConfig{"conv2d",
                     name,
                     std::move(inputs),
                     {{"filters", filters},
                      {"kernel", std::move(kernel)},
                      {"stride", options.stride},
                      {"padding", options.padding},
                      {"pads", options.pads},
                      {"groups", options.groups},
                      {"use_bias", options.use_bias},
                      {"activation", options.activation},
                      {"kernel_initializer", std::string("he_normal")}}};
}

inline LayerConfig PoolLayer(const std::string& type, const std::string& name, Ints kernel, Ints stride,
                             const std::string& padding = "valid", Ints pads = {0, 0, 0, 0}) {
  return LayerConfig{
      type,
      name,
      {},
      {{"kernel", std::move(kernel)}, {"stride", std::move(stride)}, {"padding", padding}, {"pads", std::move(pads)}}};
}

inline LayerConfig BatchNormLayer(const std::string& name, Names inputs = {}) {
  return LayerConfig{"batch_norm", name, std::move(inputs), {{"momentum", 0.8}, {"epsilon", 1e-3}}};
}
inline LayerConfig LayerNormLayer(const std::string& name) {
  return LayerConfig{"layer_norm", name, {}, {{"epsilon", 1e-3}}};
}
inline LayerConfig DropoutLayer(const std::string& name, double rate, Names inputs = {}) {
  return LayerConfig{"dropout", name, std::move(inputs), {{"rate", rate}}};
}
inline LayerConfig ReshapeLayer(const std::string& name, Ints shape, Names inputs = {}) {
  return LayerConfig{"reshape", name, std::move(inputs), {{"shape", std::move(shape)}}};
}

inline LossConfig LossOf(const std::string& type, double smoothing = 0, double delta = 1) {
  return LossConfig{type, smoothing, delta};
}

// One batch in host memory.
struct Batch {
  std::int64_t size = 0;
  std::vector<float> features, labels;
  std::vector<std::uint64_t> keys;

  ModelInput Input() const { return {size, features, nullptr, labels, keys}; }
  // Samples [begin, end).
  Batch Slice(std::int64_t begin, std::int64_t end) const {
    auto part = [&](const auto& from) {
      const auto width = static_cast<std::int64_t>(from.size()) / size;
      return std::decay_t<decltype(from)>(from.begin() + begin * width, from.begin() + end * width);
    };
    return {end - begin, part(features), part(labels), part(keys)};
  }
};

enum class Labels { kClasses, kZeroOne, kReal };

inline Batch RandomBatch(std::uint64_t seed, std::int64_t size, const ModelOptions& options, Labels kind,
                         std::int64_t classes = 2) {
  Rng rng(seed);
  Batch batch;
  batch.size = size;
  for (std::int64_t i = 0; i < size * options.input.elements(); ++i) {
    batch.features.push_back(static_cast<float>(rng.NextNormal()));
  }
  for (std::int64_t i = 0; i < size * options.label_width; ++i) {
    switch (kind) {
      case Labels::kClasses:
        batch.labels.push_back(static_cast<float>(rng.Below(static_cast<std::uint64_t>(classes))));
        break;
      case Labels::kZeroOne:
        batch.labels.push_back(static_cast<float>(rng.Below(2)));
        break;
      case Labels::kReal:
        batch.labels.push_back(static_cast<float>(rng.NextNormal()));
        break;
    }
  }
  for (std::int64_t i = 0; i < size; ++i) batch.keys.push_back(MixKey(seed, static_cast<std::uint64_t>(i)));
  return batch;
}

inline std::unique_ptr<Model> BuildOrFail(const ModelConfig& config, const ModelOptions& options, Backend& backend) {
  absl::StatusOr<std::unique_ptr<Model>> model = Model::Build(config, options, backend);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return *std::move(model);
}

// A model on a backend whose memory is the host's, with values and gradients of type T.
template <class T>
class Harness {
 public:
  Harness(const ModelConfig& config, const ModelOptions& options, std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)), model_(BuildOrFail(config, options, *backend_)) {
    std::vector<void*> values, gradients;
    for (const TensorSpec& spec : model_->tensors()) {
      Rng rng(HashName(spec.name));
      auto& tensor = values_.emplace_back(static_cast<std::size_t>(spec.shape.elements()));
      const bool around_one = spec.initializer.kind == InitializerSpec::Kind::kConstant;
      for (T& value : tensor)
        value = static_cast<T>(around_one ? 0.6 + 0.8 * rng.NextDouble() : 0.5 * rng.NextNormal());
      gradients_.emplace_back(tensor.size(), T{-77});
    }
    for (auto& tensor : values_) values.push_back(tensor.data());
    for (auto& tensor : gradients_) gradients.push_back(tensor.data());
    REQUIRE(model_->Bind(values, gradients).ok());
  }

  Model& model() { return *model_; }
  std::vector<std::vector<T>>& values() { return values_; }
  const std::vector<std::vector<T>>& gradients() const { return gradients_; }
  int IndexOf(const std::string& name) const {
    for (std::size_t i = 0; i < model_->tensors().size(); ++i) {
      if (model_->tensors()[i].name == name) return static_cast<int>(i);
    }
    FAIL("no tensor " << name);
    return -1;
  }
  std::vector<T>& Value(const std::string& name) { return values_[static_cast<std::size_t>(IndexOf(name))]; }
  const std::vector<T>& Gradient(const std::string& name) const {
    return gradients_[static_cast<std::size_t>(IndexOf(name))];
  }

  StepResult Step(const Batch& batch, const std::function<void(int)>& ready = nullptr) {
    absl::StatusOr<StepResult> result = model_->TrainStep(batch.Input(), ready);
    INFO(result.status().ToString());
    REQUIRE(result.ok());
    return *result;
  }

  std::vector<float> Predict(const Batch& batch, double* loss = nullptr) {
    std::vector<float> outputs;
    absl::StatusOr<double> sum = model_->Predict(batch.Input(), outputs);
    INFO(sum.status().ToString());
    REQUIRE(sum.ok());
    if (loss != nullptr) *loss = *sum;
    return outputs;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<std::vector<T>> values_, gradients_;
};

inline std::unique_ptr<Harness<double>> DoubleHarness(const ModelConfig& config, const ModelOptions& options) {
  return std::make_unique<Harness<double>>(config, options, MakeReferenceBackend(DType::kFloat64));
}

// Compares every trainable gradient, at most `per_tensor` elements each, with a central difference of the loss.
inline void CheckGradients(Harness<double>& harness, const Batch& batch, std::size_t per_tensor = 40) {
  const StepResult first = harness.Step(batch);
  REQUIRE(first.non_finite == 0);
  const auto gradients = harness.gradients();
  constexpr double kStep = 1e-6;
  double largest = 0;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    const TensorSpec& spec = harness.model().tensors()[t];
    if (spec.statistic) continue;
    auto& values = harness.values()[t];
    const std::size_t stride = std::max<std::size_t>(1, values.size() / per_tensor);
    for (std::size_t i = 0; i < values.size(); i += stride) {
      const double kept = values[i];
      values[i] = kept + kStep;
      harness.model().ParametersChanged();
      const double above = harness.Step(batch).loss_sum;
      values[i] = kept - kStep;
      harness.model().ParametersChanged();
      const double below = harness.Step(batch).loss_sum;
      values[i] = kept;
      harness.model().ParametersChanged();
      const double difference = (above - below) / (2 * kStep);
      largest = std::max(largest, std::abs(difference));
      INFO(spec.name << "[" << i << "]: backward " << gradients[t][i] << ", difference " << difference);
      REQUIRE(std::abs(gradients[t][i] - difference) <= 1e-6 * std::max(1.0, std::abs(difference)));
    }
  }
  REQUIRE(largest > 1e-4);  // a loss that hears nothing of its parameters would prove nothing
}

}  // namespace evenkeel::model_test
