#include "evenkeel/core/bfloat16.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr std::size_t kBlock = 256;  // floats that are decoded at a time

std::uint16_t RoundOne(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000u, magnitude = bits & 0x7fffffffu;
  const std::uint32_t rounded = magnitude + 0x7fffu + ((magnitude >> 16) & 1u);
  // A finite number stays one, an infinity one too; of a NaN the bits that make it quiet are kept.
  const std::uint32_t finite = std::min(rounded, 0x7f7f0000u);
  const std::uint32_t other = magnitude > 0x7f800000u ? magnitude | 0x00400000u : magnitude;
  return static_cast<std::uint16_t>((sign | (magnitude < 0x7f800000u ? finite : other)) >> 16);
}

float Widen(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace

void Round(std::span<const float> values, std::span<std::uint16_t> wire) {
  EK_CHECK(wire.size() == values.size());
  for (std::size_t i = 0; i < values.size(); ++i) wire[i] = RoundOne(values[i]);
}

void EncodeMeans(std::span<const float> sums, std::int64_t samples, std::span<const float> residual,
                 std::span<std::uint16_t> wire, std::span<float> rest) {
  EK_CHECK(samples > 0 && wire.size() == sums.size() && rest.size() == sums.size());
  EK_CHECK(residual.empty() || residual.size() == sums.size());
  const float scale = 1 / static_cast<float>(samples);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float mean = sums[i] * scale;
    const float value = residual.empty() ? mean : mean + residual[i];
    wire[i] = RoundOne(value);
    rest[i] = value - Widen(wire[i]);
  }
}

// A block's inputs are read before its sums are written: where they share memory, those of the blocks to come lie
// behind them.
void DecodeSums(std::span<const std::uint16_t> wire, std::int64_t samples, std::span<float> sums) {
  EK_CHECK(wire.size() == sums.size());
  const auto scale = static_cast<float>(samples);
  std::uint16_t block[kBlock];
  for (std::size_t begin = 0; begin < sums.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, sums.size() - begin);
    std::memcpy(block, wire.data() + begin, count * sizeof(std::uint16_t));
    float* const out = sums.data() + begin;
    for (std::size_t i = 0; i < count; ++i) out[i] = Widen(block[i]) * scale;
  }
}

std::span<std::uint16_t> UpperHalf(std::span<float> sums) {
  return {reinterpret_cast<std::uint16_t*>(sums.data()) + sums.size(), sums.size()};
}

}  // namespace evenkeel
