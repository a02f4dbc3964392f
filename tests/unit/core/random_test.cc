#include "evenkeel/core/random.h"

#include <array>
#include <cmath>

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST_CASE("Philox gives the known answers of its authors", "[core][random]") {
  CHECK(Philox(0, 0, 0) == Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(Philox(~0ull, ~0ull, ~0ull) == Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(Philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull) ==
        Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("a generator walks Philox's blocks", "[core][random]") {
  Rng rng(7, 9);
  for (std::uint64_t block = 0; block < 3; ++block) {
    for (std::uint32_t word : Philox(7, 9, block)) CHECK(rng.NextU32() == word);
  }
}

TEST_CASE("a copied generator goes on alike, another stream does not", "[core][random]") {
  Rng rng(5);
  rng.NextU32();
  Rng copy = rng;
  Rng other(5, 1);
  other.NextU32();
  std::uint64_t next = rng.NextU64();
  CHECK(copy.NextU64() == next);
  CHECK(other.NextU64() != next);
}

TEST_CASE("FNV-1a gives its known values", "[core][random]") {
  CHECK(HashName("") == 0xcbf29ce484222325ull);
  CHECK(HashName("a") == 0xaf63dc4c8601ec8cull);
  CHECK(HashName("foobar") == 0x85944171f73967e8ull);
}

TEST_CASE("mixing keys depends on the order and never changes", "[core][random]") {
  CHECK(MixKey(1, 2) != MixKey(2, 1));
  CHECK(MixKey(1, 2, 3) == MixKey(MixKey(1, 2), 3));
  CHECK(MixKey(0, 0) == 0xa706dd2f4d197e6full);
}

TEST_CASE("numbers below a bound are in range and even", "[core][random]") {
  Rng rng(11);
  std::array<int, 6> counts{};
  constexpr int kDraws = 60000;
  for (int i = 0; i < kDraws; ++i) {
    std::uint64_t n = rng.Below(6);
    REQUIRE(n < 6);
    ++counts[n];
  }
  for (int count : counts) CHECK(std::abs(count - kDraws / 6) < 500);
  CHECK(rng.Below(1) == 0);
  for (int i = 0; i < 100; ++i) CHECK(rng.Below((1ull << 63) + 1) <= 1ull << 63);
}

TEST_CASE("uniform and normal numbers have their moments", "[core][random]") {
  Rng rng(13);
  constexpr int kDraws = 100000;
  double uniform = 0;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    float u = rng.NextFloat();
    double d = rng.NextDouble();
    REQUIRE((u >= 0 && u < 1 && d >= 0 && d < 1));
    uniform += u;
    double n = rng.NextNormal();
    REQUIRE(std::isfinite(n));
    sum += n;
    squares += n * n;
  }
  CHECK(uniform / kDraws == Approx(0.5).margin(0.005));
  CHECK(sum / kDraws == Approx(0).margin(0.015));
  CHECK(squares / kDraws == Approx(1).margin(0.02));
  CHECK(UnitFloat(0xffffffffu) < 1.0f);
}

TEST_CASE("two nonces differ", "[core][random]") { CHECK(RandomNonce() != RandomNonce()); }

}  // namespace
}  // namespace evenkeel
