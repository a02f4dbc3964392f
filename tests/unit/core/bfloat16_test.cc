#include "evenkeel/core/bfloat16.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

// As it arrives.
float Travel(float value) {
  std::vector<float> sums{value}, rest(1);
  std::vector<std::uint16_t> wire(1), rounded(1);
  EncodeMeans(sums, 1, {}, wire, rest);
  Round(sums, rounded);
  CHECK(rounded == wire);
  if (std::isfinite(value)) CHECK(rest[0] == value - std::bit_cast<float>(static_cast<std::uint32_t>(wire[0]) << 16));
  DecodeSums(wire, 1, sums);
  return sums[0];
}

std::vector<float> Noise(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(
        std::ldexp(static_cast<float>(rng.NextDouble()) - 0.5f, static_cast<int>(rng.NextU32() % 40) - 20));
  }
  return values;
}

TEST_CASE("bfloat16 rounds to the nearest, ties to even", "[core][fast]") {
  for (const float exact : {0.0f, -0.0f, 1.0f, -1.5f, 0.0078125f, 3.3895314e38f}) {
    CHECK(std::bit_cast<std::uint32_t>(Travel(exact)) == std::bit_cast<std::uint32_t>(exact));
  }
  CHECK(Travel(1 + 1.0f / 256) == 1);                // halfway between 1 and 1 + 1/128: to the even one
  CHECK(Travel(1 + 3.0f / 256) == 1 + 1.0f / 64);    // halfway again
  CHECK(Travel(1 + 1.01f / 256) == 1 + 1.0f / 128);  // above half
  CHECK(Travel(-1 - 1.01f / 256) == -1 - 1.0f / 128);
  CHECK(Travel(std::ldexp(1.0f, -140)) == 0);  // below half of the least subnormal
  for (const float value : Noise(10000, 1)) CHECK(std::abs(Travel(value) - value) <= std::abs(value) / 256);
}

TEST_CASE("a finite number never becomes infinite on the wire, and a NaN stays one", "[core][fast]") {
  CHECK(Travel(std::numeric_limits<float>::max()) == 3.3895314e38f);
  CHECK(Travel(std::numeric_limits<float>::lowest()) == -3.3895314e38f);
  CHECK(Travel(std::numeric_limits<float>::infinity()) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(Travel(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(Travel(std::bit_cast<float>(0x7f800001u))));
  CHECK(std::isnan(Travel(std::bit_cast<float>(0xffffffffu))));
}

TEST_CASE("means are expanded in their own place", "[core][fast]") {
  for (std::size_t count : {0u, 1u, 15u, 16u, 255u, 256u, 257u, 511u, 512u, 5000u}) {
    INFO(count);
    const std::vector<float> sums = Noise(count, 2 + count);
    std::vector<float> rest(count), apart(count), in_place(count);
    std::vector<std::uint16_t> wire(count);
    EncodeMeans(sums, 48, {}, wire, rest);
    DecodeSums(wire, 48, apart);
    const std::span<std::uint16_t> half = UpperHalf(in_place);
    REQUIRE(half.size() == count);
    std::copy(wire.begin(), wire.end(), half.begin());
    DecodeSums(half, 48, in_place);
    CHECK(in_place == apart);
  }
}

TEST_CASE("with error feedback the sum of what arrives is the sum of what was meant", "[core][fast]") {
  constexpr std::size_t kFloats = 300;
  constexpr int kSteps = 400;
  std::vector<double> meant(kFloats), fed_back(kFloats), lost(kFloats);
  std::vector<float> rest(kFloats), arrived(kFloats), unused(kFloats);
  std::vector<std::uint16_t> wire(kFloats);
  double with = 0, without = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> sums(kFloats);
    for (std::size_t i = 0; i < kFloats; ++i) sums[i] = 1.003f + 0.001f * static_cast<float>(i);  // a steady gradient
    EncodeMeans(sums, 1, step == 0 ? std::span<const float>() : rest, wire, rest);
    DecodeSums(wire, 1, arrived);
    for (std::size_t i = 0; i < kFloats; ++i) fed_back[i] += arrived[i];
    EncodeMeans(sums, 1, {}, wire, unused);
    DecodeSums(wire, 1, arrived);
    for (std::size_t i = 0; i < kFloats; ++i) {
      lost[i] += arrived[i];
      meant[i] += sums[i];
    }
  }
  for (std::size_t i = 0; i < kFloats; ++i) {
    with = std::max(with, std::abs(fed_back[i] - meant[i]));
    without = std::max(without, std::abs(lost[i] - meant[i]));
  }
  CHECK(with < 0.01);  // a rounding error of one step, however many there were
  CHECK(without > 1);
}

}  // namespace
}  // namespace evenkeel
