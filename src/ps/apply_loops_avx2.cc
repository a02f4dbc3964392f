#define EVENKEEL_APPLY_NAMESPACE apply_avx2
#include "ps/apply_loops.inc"
