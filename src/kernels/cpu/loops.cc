#include "kernels/cpu/loops.h"

namespace evenkeel::kernels::cpu {

const Loops& ChooseLoops() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
    return avx512::kLoops;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kLoops;
#endif
  return baseline::kLoops;
}

}  // namespace evenkeel::kernels::cpu
