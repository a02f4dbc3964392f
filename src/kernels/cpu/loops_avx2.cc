#define EVENKEEL_LOOPS_NAMESPACE avx2
#include "kernels/cpu/loops.inc"
