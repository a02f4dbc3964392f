// Counter-based random numbers: the value depends on the key and the position alone, so whoever computes gets the same.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace evenkeel {

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
std::array<std::uint32_t, 4> Philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low);

// Mixes words into one key (SplitMix64 finalizer over a running state). Order matters.
std::uint64_t MixKey(std::uint64_t a, std::uint64_t b);
inline std::uint64_t MixKey(std::uint64_t a, std::uint64_t b, std::uint64_t c) { return MixKey(MixKey(a, b), c); }
inline std::uint64_t MixKey(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  return MixKey(MixKey(a, b, c), d);
}

// FNV-1a of the bytes, 64 bits. Stable for ever: initialisers depend on it.
std::uint64_t HashName(std::string_view name);

// Uniform in [0, 1) with 24 bits.
inline float UnitFloat(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }

// A sequential generator over Philox. Copyable; the state is (key, position). Not thread-safe.
class Rng {
 public:
  explicit Rng(std::uint64_t key, std::uint64_t stream = 0) : key_(key), stream_(stream) {}
  std::uint32_t NextU32();
  std::uint64_t NextU64() { return (static_cast<std::uint64_t>(NextU32()) << 32) | NextU32(); }
  // Uniform in [0, bound), without bias. Requires bound > 0.
  std::uint64_t Below(std::uint64_t bound);
  double NextDouble() { return static_cast<double>(NextU64() >> 11) * 0x1.0p-53; }
  float NextFloat() { return UnitFloat(NextU32()); }
  // Standard normal (Box-Muller).
  double NextNormal();

 private:
  std::uint64_t key_;
  std::uint64_t stream_;
  std::uint64_t position_ = 0;
  std::array<std::uint32_t, 4> block_{};  // the numbers around position_
};

// 64 bits from the operating system: for job ids and nonces, never for training.
std::uint64_t RandomNonce();

}  // namespace evenkeel
