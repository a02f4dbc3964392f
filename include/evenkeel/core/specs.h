// What a model's tensors are and how servers initialise and update them: plain data that model, protocol, servers and
// checkpoints share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evenkeel/core/shape.h"

namespace evenkeel {

// How a tensor's first values follow from (job seed, tensor name, element index).
struct InitializerSpec {
  enum class Kind : std::uint8_t {
    kZeros,
    kConstant,         // value
    kUniform,          // [-scale, scale)
    kNormal,           // mean 0, standard deviation scale
    kTruncatedNormal,  // as kNormal, redrawn beyond two standard deviations
    kGlorotUniform,    // Glorot & Bengio 2010, eq. 16: limit sqrt(6 / (fan_in + fan_out))
    kGlorotNormal,     // standard deviation sqrt(2 / (fan_in + fan_out))
    kHeUniform,        // He et al. 2015, eq. 10: limit sqrt(6 / fan_in)
    kHeNormal,         // standard deviation sqrt(2 / fan_in)
    kLecunNormal,      // standard deviation sqrt(1 / fan_in)
  };
  Kind kind = Kind::kZeros;
  float value = 0;
  float scale = 0;
  std::int64_t fan_in = 1;
  std::int64_t fan_out = 1;
  friend bool operator==(const InitializerSpec&, const InitializerSpec&) = default;
};

struct TensorSpec {
  std::string name;  // unique in a model, "conv1/weight"
  Shape shape;       // float32, row-major
  InitializerSpec initializer;
  // A moving statistic (batch norm's mean and biased variance): averaged by samples, then
  // value = momentum * value + (1 - momentum) * mean. No optimizer, decay, clipping, norm or 16-bit wire touches it.
  bool statistic = false;
  float statistic_momentum = 0.9f;
  // L2 and weight decay apply (weights), or not (biases, scales).
  bool decay = true;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Server-side optimizer, applied to the mean gradient g. Slots are float32 arrays as long as the parameters.
struct OptimizerSpec {
  enum class Kind : std::uint8_t { kSgd, kMomentum, kNesterov, kAdagrad, kRmsprop, kAdam, kAdamW, kFtrl };
  Kind kind = Kind::kSgd;
  float momentum = 0.9f;             // momentum, nesterov, rmsprop (0: none)
  float beta1 = 0.9f;                // adam, adamw
  float beta2 = 0.999f;              // adam, adamw
  float rho = 0.9f;                  // rmsprop: decay of the squared average
  float epsilon = 1e-8f;             // adagrad, rmsprop, adam, adamw
  float initial_accumulator = 0.1f;  // adagrad, ftrl
  float ftrl_l1 = 0;                 // ftrl (McMahan et al. 2013, alg. 1, per coordinate)
  float ftrl_l2 = 0;
  float ftrl_learning_rate_power = -0.5f;
  float l2 = 0;            // adds l2 * w to g, for tensors with decay
  float weight_decay = 0;  // decoupled: w -= learning_rate * weight_decay * w, for tensors with decay
  float clip_value = 0;    // > 0: clips each element of the mean gradient to [-clip_value, clip_value]
  float clip_norm = 0;     // > 0: scales the mean gradient so that its norm over all servers is at most clip_norm
  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};

// Names of the optimizer's slots in order, for example {"m", "v"}; empty for plain sgd.
std::vector<std::string> SlotNames(const OptimizerSpec& optimizer);
const char* ToString(OptimizerSpec::Kind kind);
const char* ToString(InitializerSpec::Kind kind);

}  // namespace evenkeel
