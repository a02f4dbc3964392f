// The layers of the experiment file. Their attributes are those that config/experiment.h lists.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/shape.h"
#include "evenkeel/core/specs.h"
#include "evenkeel/model/layer.h"

namespace evenkeel {

using LayerOr = absl::StatusOr<std::unique_ptr<Layer>>;

LayerOr MakeDense(const LayerConfig& config);
LayerOr MakeConv2d(const LayerConfig& config);
LayerOr MakePool(const LayerConfig& config);  // max_pool, avg_pool
LayerOr MakeGlobalAveragePool(const LayerConfig& config);
LayerOr MakeBatchNorm(const LayerConfig& config);
LayerOr MakeLayerNorm(const LayerConfig& config);
LayerOr MakeDropout(const LayerConfig& config);
LayerOr MakeActivation(const LayerConfig& config);  // relu, gelu, tanh, sigmoid
LayerOr MakeReshape(const LayerConfig& config);     // flatten, reshape
LayerOr MakeAdd(const LayerConfig& config);
LayerOr MakeConcat(const LayerConfig& config);

// A layer that can apply the relu behind it itself, in training at no pass of its own, and the relu that it takes over.
// Both are to be planned anew afterwards.
class ReluTaker {
 public:
  virtual ~ReluTaker() = default;
  virtual void TakeRelu() = 0;
};
class TakenRelu {
 public:
  virtual ~TakenRelu() = default;
  // False: it is another activation. True: it passes its input on from now on.
  virtual bool GiveUp() = 0;
};

// "conv2d c1", as messages begin with.
std::string LayerLabel(const LayerConfig& config);
// kInvalidArgument, "[conv2d c1] MESSAGE".
absl::Status LayerError(std::string_view label, std::string_view message);
// The layer takes one input only.
absl::Status ExpectOneInput(std::string_view label, std::span<const Shape> inputs);
// `text` as config's ParseInitializer reads it, with the fans filled in.
absl::StatusOr<InitializerSpec> MakeInitializer(const LayerConfig& config, std::string_view text, std::int64_t fan_in,
                                                std::int64_t fan_out);
// A bias or a scale: starts at `value`, without decay.
TensorSpec MakeOffset(std::string name, std::int64_t elements, float value);

// The view of `elements` of a layer's saved memory, beginning at element `offset`.
Tensor SavedTensor(const LayerContext& context, std::int64_t offset, Shape shape);

// True for a type of the experiment file; such a type can't be registered.
bool IsBuiltinLayer(std::string_view type);
// The layer for `config`, built-in or registered. Errors: kInvalidArgument names an unknown type and those known.
LayerOr MakeLayer(const LayerConfig& config);

}  // namespace evenkeel
