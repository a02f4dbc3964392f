#include "evenkeel/core/random.h"

#include <cmath>
#include <numbers>
#include <random>

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

std::uint64_t SplitMix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

std::array<std::uint32_t, 4> Philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  std::array<std::uint32_t, 4> c = {
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    std::uint64_t product0 = kMultiplier0 * c[0];
    std::uint64_t product1 = kMultiplier1 * c[2];
    c = {static_cast<std::uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

std::uint64_t MixKey(std::uint64_t a, std::uint64_t b) { return SplitMix(SplitMix(a) ^ b); }

std::uint64_t HashName(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

std::uint32_t Rng::NextU32() {
  if (position_ % 4 == 0) block_ = Philox(key_, stream_, position_ / 4);
  return block_[position_++ % 4];
}

std::uint64_t Rng::Below(std::uint64_t bound) {
  EK_CHECK(bound > 0);
  // Lemire's method: the high word of a 64x64 product, rejecting the few low words that would favour some results.
  using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(NextU64()) * bound;
  auto low = static_cast<std::uint64_t>(product);
  if (low < bound) {
    std::uint64_t threshold = (0 - bound) % bound;
    while (low < threshold) {
      product = static_cast<Wide>(NextU64()) * bound;
      low = static_cast<std::uint64_t>(product);
    }
  }
  return static_cast<std::uint64_t>(product >> 64);
}

double Rng::NextNormal() {
  double radius = std::sqrt(-2.0 * std::log(1.0 - NextDouble()));
  return radius * std::cos(2.0 * std::numbers::pi * NextDouble());
}

std::uint64_t RandomNonce() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace evenkeel
