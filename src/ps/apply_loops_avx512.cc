#define EVENKEEL_APPLY_NAMESPACE apply_avx512
#include "ps/apply_loops.inc"
