#define EVENKEEL_LOOPS_NAMESPACE avx512
#include "kernels/cpu/loops.inc"
