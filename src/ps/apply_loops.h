// The vectorised loops of an optimizer step, compiled once per instruction set and chosen at run time. Compiled without
// contraction into fused multiply-adds, and with operations that IEEE 754 rounds alike everywhere, so that a float's
// bits depend neither on its place in a vector nor on the instruction set.
//
// Threading: every function is pure over the range it is given.
// Aliasing: `out` may be `w`; otherwise none.
#pragma once

#include <cstdint>

namespace evenkeel::ps {

// The numbers of a step, the same for all floats of a tensor.
struct StepNumbers {
  float scale = 1;  // of the summed gradient
  float clip = 0;   // > 0: limit of the scaled gradient
  float l2 = 0;     // adds l2 * w to the clipped gradient; 0: nothing is added
  float rate = 0;
  float keep = 1;
  float momentum = 0;
  float rho = 0;
  float epsilon = 0;
  float beta1 = 0, beta2 = 0;
  float adam_step = 0, adam_root_scale = 1;
  float ftrl_l1 = 0, ftrl_l2 = 0;
};

// What a step reads and writes, `count` floats each.
struct StepArrays {
  std::int64_t count = 0;
  const float* first = nullptr;   // the summed gradient is first + second,
  const float* second = nullptr;  // or first alone where this is null
  const float* w = nullptr;
  float* out = nullptr;
  float* s0 = nullptr;  // the optimizer's slots, null where it has none
  float* s1 = nullptr;
  bool past_caches = false;  // `out` goes to memory past the caches; needs out 64-byte aligned, and Fence() afterwards
};

struct ApplyLoops {
  const char* isa;

  using StepLoop = void (*)(const StepNumbers& numbers, const StepArrays& arrays);
  StepLoop sgd, momentum, nesterov, adagrad, rmsprop, rmsprop_momentum, adam, ftrl_root;

  // out = momentum * w + (1 - momentum) * (sum * scale)
  void (*statistic)(std::int64_t n, float momentum, float scale, const float* sum, const float* w, float* out);
  // out = a + b; out = a where b is null.  out may be a.
  void (*sum)(std::int64_t n, const float* a, const float* b, float* out);
  // Sum of squares in double: eight sums side by side, added in pairs at the end.
  double (*squares)(std::int64_t n, const float* values);
  // Orders what was written past the caches before all later writes.
  void (*fence)();
};

namespace apply_baseline {
extern const ApplyLoops kLoops;
}
namespace apply_avx2 {
extern const ApplyLoops kLoops;
}
namespace apply_avx512 {
extern const ApplyLoops kLoops;
}

// The best table that this processor runs.
const ApplyLoops& ChooseApplyLoops();

}  // namespace evenkeel::ps
