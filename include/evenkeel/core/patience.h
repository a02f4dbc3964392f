// How long to look for what one waits for before one sleeps. Going to sleep and being woken takes 10 us and more; a
// look costs nothing where a core is free, and the core of whoever is awaited where none is. So looking is learned: who
// looks gives the core away as it does so, and a look that another thread has waited for counts as one that found
// nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "evenkeel/core/clock.h"

namespace evenkeel {

// Whether the next wait is to begin with a look. Looks go on while more than three of four are worth it; after one that
// is not a number of waits begin without, which grows eightfold each time, up to kLongestRest, and halves with each
// look that is.
//
// Threading: none.
class Patience {
 public:
  static constexpr std::uint32_t kLongestRest = 4096, kGrowth = 8;

  // Call once a wait; Learn follows where it says true.
  bool Looks() {
    if (rest_ == 0) return true;
    --rest_;
    return false;
  }
  void Learn(bool worth_it) {
    if (worth_it) {
      next_rest_ = std::max(next_rest_ / 2, 1U);
    } else {
      rest_ = next_rest_;
      next_rest_ = std::min(next_rest_ * kGrowth, kLongestRest);
    }
  }

 private:
  std::uint32_t rest_ = 0;  // waits
  std::uint32_t next_rest_ = 1;
};

enum class Looked : std::uint8_t {
  kFound,
  kNothing,
  kCrowded,  // another thread took the core meanwhile; there may be something
};

// Calls `found` until it says true, for `longest` at most.
template <class Found>
Looked LookFor(Duration longest, const Found& found);

// ------------------------------------------------------------------------------------------------------------------

namespace patience_internal {
// The system's call returns sooner unless it gives the core away.
constexpr Duration kCrowded = std::chrono::microseconds(2);
constexpr int kLooksAtOnce = 32;
// How long it took to let others run.
Duration GiveWay();
void Pause();
}  // namespace patience_internal

template <class Found>
Looked LookFor(Duration longest, const Found& found) {
  const TimePoint end = Clock::Real().Now() + longest;
  for (;;) {
    for (int i = 0; i < patience_internal::kLooksAtOnce; ++i) {
      if (found()) return Looked::kFound;
      patience_internal::Pause();
    }
    if (patience_internal::GiveWay() > patience_internal::kCrowded) return Looked::kCrowded;
    if (Clock::Real().Now() >= end) return found() ? Looked::kFound : Looked::kNothing;
  }
}

}  // namespace evenkeel
