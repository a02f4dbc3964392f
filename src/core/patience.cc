#include "evenkeel/core/patience.h"

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace evenkeel::patience_internal {

Duration GiveWay() {
  const TimePoint begin = Clock::Real().Now();
  (void)sched_yield();  // never fails on Linux
  return Clock::Real().Now() - begin;
}

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace evenkeel::patience_internal
