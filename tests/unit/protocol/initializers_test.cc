#include <catch2/catch.hpp>
#include <cmath>

#include "evenkeel/protocol/layout.h"

namespace evenkeel {
namespace {

using Kind = InitializerSpec::Kind;

std::vector<float> Values(const TensorSpec& tensor, std::uint64_t seed, std::int64_t begin, std::size_t count) {
  std::vector<float> values(count);
  InitializeTensor(tensor, seed, begin, values);
  return values;
}

TensorSpec Tensor(Kind kind, const std::string& name = "w") {
  return {.name = name, .initializer = {.kind = kind, .value = 3, .scale = 0.5f, .fan_in = 50, .fan_out = 100}};
}

TEST_CASE("initial values do not depend on the cut", "[protocol]") {
  for (int kind = 0; kind <= static_cast<int>(Kind::kLecunNormal); ++kind) {
    CAPTURE(kind);
    TensorSpec tensor = Tensor(static_cast<Kind>(kind));
    std::vector<float> whole = Values(tensor, 42, 0, 1000);
    for (std::int64_t begin : {0, 1, 2, 3, 5, 16, 997}) {
      std::vector<float> part = Values(tensor, 42, begin, static_cast<std::size_t>(1000 - begin));
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + begin));
    }
  }
}

TEST_CASE("initial values depend on seed and name", "[protocol]") {
  for (Kind kind : {Kind::kUniform, Kind::kNormal}) {
    std::vector<float> base = Values(Tensor(kind), 42, 0, 100);
    CHECK(base != Values(Tensor(kind), 43, 0, 100));
    CHECK(base != Values(Tensor(kind, "v"), 42, 0, 100));
    CHECK(base == Values(Tensor(kind), 42, 0, 100));
  }
}

TEST_CASE("initial values have their distribution's mean, deviation and bounds", "[protocol]") {
  struct Case {
    Kind kind;
    double mean, deviation, bound;
  };
  const double truncated = 0.5 * 0.8796256610342398;  // standard deviation of a normal cut at two deviations
  for (const Case& c : {
           Case{Kind::kZeros, 0, 0, 0},
           Case{Kind::kConstant, 3, 0, 3},
           Case{Kind::kUniform, 0, 0.5 / std::sqrt(3.0), 0.5},
           Case{Kind::kNormal, 0, 0.5, 5},
           Case{Kind::kTruncatedNormal, 0, truncated, 1},
           Case{Kind::kGlorotUniform, 0, std::sqrt(2.0 / 150), std::sqrt(6.0 / 150)},
           Case{Kind::kGlorotNormal, 0, std::sqrt(2.0 / 150), 5},
           Case{Kind::kHeUniform, 0, std::sqrt(2.0 / 50), std::sqrt(6.0 / 50)},
           Case{Kind::kHeNormal, 0, std::sqrt(2.0 / 50), 5},
           Case{Kind::kLecunNormal, 0, std::sqrt(1.0 / 50), 5},
       }) {
    CAPTURE(ToString(c.kind));
    constexpr std::size_t kCount = 200000;
    double sum = 0, squares = 0, largest = 0;
    for (float x : Values(Tensor(c.kind), 1, 0, kCount)) {
      sum += x;
      squares += (x - c.mean) * (x - c.mean);
      largest = std::max(largest, std::abs(static_cast<double>(x)));
    }
    CHECK(sum / kCount == Approx(c.mean).margin(0.005));
    CHECK(std::sqrt(squares / kCount) == Approx(c.deviation).epsilon(0.01));
    CHECK(largest <= c.bound * (1 + 1e-6));
  }
}

TEST_CASE("neighbouring normal values are uncorrelated", "[protocol]") {
  std::vector<float> x = Values(Tensor(Kind::kNormal), 9, 0, 100000);
  double sum = 0;
  for (std::size_t i = 0; i + 1 < x.size(); ++i) sum += static_cast<double>(x[i]) * x[i + 1];
  CHECK(std::abs(sum / static_cast<double>(x.size()) / 0.25) < 0.02);
}

}  // namespace
}  // namespace evenkeel
