#define EVENKEEL_APPLY_NAMESPACE apply_baseline
#include "ps/apply_loops.inc"
