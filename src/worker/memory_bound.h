// How many samples this worker's memory holds: what it tells the chief, so that no batch is larger.
//
// Threading: none; one caller at a time.
#pragma once

#include <cstdint>

namespace evenkeel {

class MemoryBound {
 public:
  // Memory is held now for batches of up to `samples`, `bytes` in all. Requires samples >= 1. What was held before is
  // forgotten, but for the smallest: bytes are taken to grow by a line through both, or through nothing where there is
  // no second.
  void Observe(std::int64_t samples, std::int64_t bytes);

  // The largest batch that fits where `available` bytes more may be taken, of which some are left to others; at least
  // what is held already. 0: nothing was observed.
  std::int64_t Samples(std::int64_t available) const;

 private:
  struct Held {
    std::int64_t samples = 0;
    std::int64_t bytes = 0;
  };
  Held least_, now_;
};

}  // namespace evenkeel
