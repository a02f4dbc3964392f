#include "evenkeel/core/specs.h"

#include "evenkeel/core/status.h"

namespace evenkeel {

std::vector<std::string> SlotNames(const OptimizerSpec& optimizer) {
  switch (optimizer.kind) {
    case OptimizerSpec::Kind::kSgd:
      return {};
    case OptimizerSpec::Kind::kMomentum:
    case OptimizerSpec::Kind::kNesterov:
      return {"momentum"};
    case OptimizerSpec::Kind::kAdagrad:
      return {"accumulator"};
    case OptimizerSpec::Kind::kRmsprop:
      if (optimizer.momentum > 0) return {"mean_square", "momentum"};
      return {"mean_square"};
    case OptimizerSpec::Kind::kAdam:
    case OptimizerSpec::Kind::kAdamW:
      return {"m", "v"};
    case OptimizerSpec::Kind::kFtrl:
      return {"accumulator", "linear"};
  }
  EK_CHECK_MSG(false, "unknown optimizer kind");
  return {};
}

const char* ToString(OptimizerSpec::Kind kind) {
  switch (kind) {
    case OptimizerSpec::Kind::kSgd:
      return "sgd";
    case OptimizerSpec::Kind::kMomentum:
      return "momentum";
    case OptimizerSpec::Kind::kNesterov:
      return "nesterov";
    case OptimizerSpec::Kind::kAdagrad:
      return "adagrad";
    case OptimizerSpec::Kind::kRmsprop:
      return "rmsprop";
    case OptimizerSpec::Kind::kAdam:
      return "adam";
    case OptimizerSpec::Kind::kAdamW:
      return "adamw";
    case OptimizerSpec::Kind::kFtrl:
      return "ftrl";
  }
  return "unknown";
}

const char* ToString(InitializerSpec::Kind kind) {
  switch (kind) {
    case InitializerSpec::Kind::kZeros:
      return "zeros";
    case InitializerSpec::Kind::kConstant:
      return "constant";
    case InitializerSpec::Kind::kUniform:
      return "uniform";
    case InitializerSpec::Kind::kNormal:
      return "normal";
    case InitializerSpec::Kind::kTruncatedNormal:
      return "truncated_normal";
    case InitializerSpec::Kind::kGlorotUniform:
      return "glorot_uniform";
    case InitializerSpec::Kind::kGlorotNormal:
      return "glorot_normal";
    case InitializerSpec::Kind::kHeUniform:
      return "he_uniform";
    case InitializerSpec::Kind::kHeNormal:
      return "he_normal";
    case InitializerSpec::Kind::kLecunNormal:
      return "lecun_normal";
  }
  return "unknown";
}

}  // namespace evenkeel
