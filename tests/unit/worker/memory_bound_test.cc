#include "worker/memory_bound.h"

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

TEST_CASE("memory that nothing is known of bounds nothing", "[worker][memory]") {
  CHECK(MemoryBound().Samples(1'000'000) == 0);
}

TEST_CASE("before a second size is known, all that is held counts by the sample", "[worker][memory]") {
  MemoryBound bound;
  bound.Observe(8, 8'000);
  CHECK(bound.Samples(100'000) == 8 + 80);
  CHECK(bound.Samples(0) == 8);
  CHECK(bound.Samples(-5) == 8);
}

TEST_CASE("with two sizes only what grows counts, and what is held fits whatever is left", "[worker][memory]") {
  MemoryBound bound;
  bound.Observe(8, 1'000'000 + 8 * 500);
  bound.Observe(64, 1'000'000 + 64 * 500);
  CHECK(bound.Samples(1'000'000) == 64 + 1600);
  CHECK(bound.Samples(0) == 64);
  bound.Observe(512, 1'000'000 + 512 * 500);
  CHECK(bound.Samples(100) == 512);
  CHECK(bound.Samples(10'000) == 512);  // 16 more would fit, but not the step in which memory grows
  CHECK(bound.Samples(100'000) == 512 + 160);
}

TEST_CASE("memory that does not grow with the batch still ends somewhere", "[worker][memory]") {
  MemoryBound bound;
  bound.Observe(8, 4096);
  bound.Observe(16, 4096);
  CHECK(bound.Samples(4096) > 16);
  CHECK(bound.Samples(4096) < 16 + 4096);
}

}  // namespace
}  // namespace evenkeel
