#include <cmath>
#include <numbers>

#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/layout.h"

namespace evenkeel {
namespace {

constexpr double kWord = 0x1.0p-32;

// Element i of a uniform sequence in [-limit, limit): word i % 4 of block i / 4.
void FillUniform(std::uint64_t key, double limit, std::int64_t begin, std::span<float> out) {
  std::array<std::uint32_t, 4> block{};
  std::uint64_t held = ~std::uint64_t{0};
  for (std::size_t k = 0; k < out.size(); ++k) {
    std::uint64_t i = static_cast<std::uint64_t>(begin) + k;
    if (i / 4 != held) {
      held = i / 4;
      block = Philox(key, 0, held);
    }
    out[k] = static_cast<float>((2.0 * UnitFloat(block[i % 4]) - 1.0) * limit);
  }
}

// Box-Muller on a pair of words.
double Normal(std::uint32_t radius_word, std::uint32_t angle_word) {
  double radius = std::sqrt(-2.0 * std::log((static_cast<double>(radius_word) + 0.5) * kWord));
  return radius * std::cos(2.0 * std::numbers::pi * static_cast<double>(angle_word) * kWord);
}

// Element i of a normal sequence: words 2 (i % 2) and the next of block i / 2; redraw r, beyond `bound`, is the same of
// counter_high r.
void FillNormal(std::uint64_t key, double deviation, double bound, std::int64_t begin, std::span<float> out) {
  for (std::size_t k = 0; k < out.size(); ++k) {
    std::uint64_t i = static_cast<std::uint64_t>(begin) + k;
    double value = 0;
    std::uint64_t attempt = 0;
    do {
      std::array<std::uint32_t, 4> block = Philox(key, attempt++, i / 2);
      value = Normal(block[2 * (i % 2)], block[2 * (i % 2) + 1]);
    } while (std::abs(value) > bound);
    out[k] = static_cast<float>(value * deviation);
  }
}

}  // namespace

void InitializeTensor(const TensorSpec& tensor, std::uint64_t seed, std::int64_t begin, std::span<float> out) {
  using Kind = InitializerSpec::Kind;
  const InitializerSpec& spec = tensor.initializer;
  const std::uint64_t key = MixKey(seed, HashName(tensor.name));
  const double fan_in = static_cast<double>(spec.fan_in);
  const double fan_sum = fan_in + static_cast<double>(spec.fan_out);
  auto uniform = [&](double limit) { FillUniform(key, limit, begin, out); };
  auto normal = [&](double deviation, double bound = HUGE_VAL) { FillNormal(key, deviation, bound, begin, out); };
  switch (spec.kind) {
    case Kind::kZeros:
      for (float& x : out) x = 0;
      return;
    case Kind::kConstant:
      for (float& x : out) x = spec.value;
      return;
    case Kind::kUniform:
      return uniform(spec.scale);
    case Kind::kNormal:
      return normal(spec.scale);
    case Kind::kTruncatedNormal:
      return normal(spec.scale, 2.0);
    case Kind::kGlorotUniform:
      return uniform(std::sqrt(6.0 / fan_sum));
    case Kind::kGlorotNormal:
      return normal(std::sqrt(2.0 / fan_sum));
    case Kind::kHeUniform:
      return uniform(std::sqrt(6.0 / fan_in));
    case Kind::kHeNormal:
      return normal(std::sqrt(2.0 / fan_in));
    case Kind::kLecunNormal:
      return normal(std::sqrt(1.0 / fan_in));
  }
  EK_CHECK_MSG(false, "unknown initializer kind");
}

}  // namespace evenkeel
