// Floats on a 16-bit wire: bfloat16, the upper half of a float32, rounded to nearest, ties to even; what would become
// infinite is the largest number.
//
// A gradient travels as a mean over its samples, of which what rounding took away is added to the sender's next one
// (error feedback: Seide et al. 2014, "1-bit stochastic gradient descent", section 2; Karimireddy et al. 2019,
// "Error feedback fixes SignSGD", algorithm 2): over many steps nothing is lost.
//
// Threading: pure functions. Aliasing: none but as said. The same bits on every machine.
#pragma once

#include <cstdint>
#include <span>

namespace evenkeel {

enum class WireDtype : std::uint8_t { kFloat32, kBfloat16 };

// Of one float on the wire.
constexpr std::int64_t WireBytes(WireDtype dtype) { return dtype == WireDtype::kBfloat16 ? 2 : 4; }

void Round(std::span<const float> values, std::span<std::uint16_t> wire);

// Rounds sums / samples + residual to `wire`; what that takes away goes to `rest`. An empty residual is zero. All other
// spans have the same length; `rest` may be `sums` or `residual`. Requires samples > 0.
void EncodeMeans(std::span<const float> sums, std::int64_t samples, std::span<const float> residual,
                 std::span<std::uint16_t> wire, std::span<float> rest);

// sums = wire * samples. `wire` may be the upper half of `sums`' own memory.
void DecodeSums(std::span<const std::uint16_t> wire, std::int64_t samples, std::span<float> sums);

// Where a payload of `sums.size()` bfloat16 goes that DecodeSums then expands in place.
std::span<std::uint16_t> UpperHalf(std::span<float> sums);

}  // namespace evenkeel
