#define EVENKEEL_LOOPS_NAMESPACE baseline
#include "kernels/cpu/loops.inc"
