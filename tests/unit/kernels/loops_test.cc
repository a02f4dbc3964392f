// The vectorised loops: every instruction set that this processor runs computes alike.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "evenkeel/core/random.h"
#include "kernels/cpu/loops.h"

namespace evenkeel::kernels::cpu {
namespace {

std::vector<const Loops*> RunnableLoops() {
  std::vector<const Loops*> loops = {&baseline::kLoops};
  const Loops& best = ChooseLoops();
  if (&best != &baseline::kLoops) loops.push_back(&avx2::kLoops);
  if (&best == &avx512::kLoops) loops.push_back(&avx512::kLoops);
  return loops;
}

TEST_CASE("all instruction sets compute the activations to 1e-6", "[kernels]") {
  std::vector<float> x, y(4001);
  for (int i = -2000; i <= 2000; ++i) x.push_back(static_cast<float>(i) * 0.01f);
  for (const Loops* loops : RunnableLoops()) {
    INFO(loops->isa);
    loops->gelu(4001, x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      REQUIRE(y[i] == Approx(x[i] * std::erfc(-x[i] / std::sqrt(2.0)) / 2).epsilon(1e-6).margin(1e-6));
    }
    loops->tanh(4001, x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(y[i] == Approx(std::tanh(double{x[i]})).epsilon(1e-6));
    loops->sigmoid(4001, x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(y[i] == Approx(1 / (1 + std::exp(-double{x[i]}))).epsilon(1e-6));
  }
}

TEST_CASE("all instruction sets drop the elements that Philox says", "[kernels]") {
  for (const Loops* loops : RunnableLoops()) {
    INFO(loops->isa);
    for (std::int64_t n : {1, 5, 31, 32, 33, 700}) {
      std::vector<float> x(static_cast<std::size_t>(n), 1.0f), y(x.size(), -1.0f);
      const std::uint64_t key = 0xfedcba9876543210u;
      loops->dropout(n, key, 0.5f, 2.0f, x.data(), y.data());
      for (std::int64_t j = 0; j < n; ++j) {
        const auto u = static_cast<std::uint64_t>(j);
        REQUIRE(y[j] == (UnitFloat(Philox(key, 0, u / 4)[u % 4]) >= 0.5f ? 2.0f : 0.0f));
      }
    }
  }
}

}  // namespace
}  // namespace evenkeel::kernels::cpu
