// The arithmetic of an optimizer step on one block of floats, in one pass over memory. A float's bits do not depend on
// where in a vector it stands, nor on the instruction set; each processor's widest vectors are chosen at run time.
//
// Threading: pure functions. Aliasing: `w_out` may be `w`, and SumSources's `out` where sources[0] begins; otherwise
// none.
#pragma once

#include <cstdint>
#include <span>

#include "evenkeel/core/specs.h"

namespace evenkeel::ps {

// The numbers of a step, the same for all floats.
struct StepConstants {
  OptimizerSpec optimizer;
  float learning_rate = 0;
  float gradient_scale = 1;   // clip_scale / samples
  float mean_scale = 1;       // 1 / samples, for statistics
  float keep = 1;             // 1 - learning_rate * weight_decay
  float adam_step = 0;        // learning_rate / (1 - beta1^t)
  float adam_root_scale = 1;  // 1 / sqrt(1 - beta2^t)

  // `step`: t, from 1.
  static StepConstants For(const OptimizerSpec& optimizer, double learning_rate, std::int64_t samples,
                           double clip_scale, std::uint64_t step);
};

// out = sources[0] + sources[1] + ... in this order, from element `begin`. Requires at least one source.
void SumSources(std::span<const float* const> sources, std::int64_t begin, std::int64_t count, float* out);

// Sum of squares in double, in a fixed order.
double SquaredSum(const float* values, std::int64_t count);

// The summed gradient of a block: first + second, or first alone where there is no second.
struct GradientSum {
  const float* first = nullptr;
  const float* second = nullptr;
};

// Where a step's result goes. kMemory spares the caches, and the memory's bandwidth the reading of what is overwritten
// whole; its writer calls FinishSteps before anyone else may read. Bits do not depend on it.
enum class Destination : std::uint8_t { kCaches, kMemory };

// s0 and s1 are the optimizer's slots, nullptr where it has none.
void OptimizerStep(const StepConstants& step, bool decay, std::int64_t count, GradientSum g, const float* w,
                   float* w_out, float* s0, float* s1, Destination destination = Destination::kCaches);

// On the thread that made steps to kMemory, once after the last of them.
void FinishSteps();

// w_out = momentum * w + (1 - momentum) * mean, mean = sum / samples.
void StatisticStep(const StepConstants& step, float momentum, std::int64_t count, const float* sum, const float* w,
                   float* w_out);

}  // namespace evenkeel::ps
