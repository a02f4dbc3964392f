// Normalisation, activations, dropout, joins and elementwise operations, on every backend.
#include "conformance/kernels/lab.h"

namespace evenkeel::testing {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr ActivationKind kActivations[] = {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kTanh,
                                           ActivationKind::kSigmoid};

std::vector<Values> NormPasses(Lab& lab, const Shape& shape, bool batch, bool relu = false) {
  Rng rng(31, static_cast<std::uint64_t>(shape.elements()));
  const std::int64_t c = shape[-1];
  const Shape channels = {c};
  const Shape statistics = batch ? channels : Shape(shape.dims().first(shape.dims().size() - 1));
  Tensor x = lab.Make(shape, RandomValues(rng, shape.elements(), -2, 3));
  Tensor gamma = lab.Make(channels, RandomValues(rng, c, 0.5, 2)), beta = lab.Make(channels, RandomValues(rng, c));
  Tensor dy = lab.Make(shape, RandomValues(rng, shape.elements()));
  Tensor y = lab.Output(shape), dx = lab.Output(shape), mean = lab.Output(statistics),
         variance = lab.Output(statistics);
  Tensor dgamma = lab.Output(channels), dbeta = lab.Output(channels), inferred = lab.Output(shape);
  Backend& k = lab.backend();
  void* const mask = relu ? lab.Bytes(*k.BatchNormMaskBytes(shape)) : nullptr;
  if (batch) {
    RequireOk(k.BatchNormTrain(kEpsilon, x, gamma, beta, y, mean, variance, mask));
    RequireOk(k.BatchNormBackward(kEpsilon, x, gamma, mean, variance, dy, dx, dgamma, dbeta, mask));
    RequireOk(k.BatchNormInfer(kEpsilon, x, gamma, beta, mean, variance, inferred));
  } else {
    RequireOk(k.LayerNorm(kEpsilon, x, gamma, beta, y, mean, variance));
    RequireOk(k.LayerNormBackward(kEpsilon, x, gamma, mean, variance, dy, dx, dgamma, dbeta));
    RequireOk(k.Copy(y, inferred));
  }
  return {lab.Read(y),  lab.Read(mean),   lab.Read(variance), lab.Read(inferred),
          lab.Read(dx), lab.Read(dgamma), lab.Read(dbeta)};
}

TEST_CASE("batch norm, its statistics and gradients agree with the reference", "[kernels]") {
  for (std::int64_t c : {1, 3, 5, 16, 17, 64}) {
    for (const Shape& shape : {Shape{0, 4, 4, c}, Shape{33, c}, Shape{7, 5, 3, c}, Shape{4, 9, 9, c}}) {
      INFO(shape.ToString());
      Conform([&](Lab& lab) { return NormPasses(lab, shape, true); });
    }
  }
}

TEST_CASE("batch norm with the relu behind it agrees with the reference, and with the two apart", "[kernels]") {
  for (std::int64_t c : {1, 3, 5, 16, 17, 64}) {
    for (const Shape& shape : {Shape{0, 4, 4, c}, Shape{33, c}, Shape{7, 5, 3, c}, Shape{4, 9, 9, c}}) {
      INFO(shape.ToString());
      Conform([&](Lab& lab) { return NormPasses(lab, shape, true, true); });
      for (const NamedBackend& named : BackendsUnderTest()) {
        INFO(named.name);
        auto backend = named.make();
        Lab lab(*backend);
        const std::vector<Values> apart = NormPasses(lab, shape, true), fused = NormPasses(lab, shape, true, true);
        REQUIRE(apart[0].size() == fused[0].size());
        for (std::size_t i = 0; i < apart[0].size(); ++i) CHECK(fused[0][i] == std::max(0.0, apart[0][i]));
        CHECK(fused[1] == apart[1]);
      }
    }
  }
}

TEST_CASE("layer norm, its statistics and gradients agree with the reference", "[kernels]") {
  for (std::int64_t c : {3, 5, 16, 17, 64, 100}) {
    for (const Shape& shape : {Shape{0, c}, Shape{1, c}, Shape{33, c}, Shape{2, 5, c}}) {
      INFO(shape.ToString());
      Conform([&](Lab& lab) { return NormPasses(lab, shape, false); });
    }
  }
}

TEST_CASE("batch norm gives each channel mean beta and deviation gamma", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    INFO(named.name);
    auto backend = named.make();
    Lab lab(*backend);
    Tensor y = lab.Output({4, 1}), mean = lab.Output({1}), variance = lab.Output({1});
    RequireOk(backend->BatchNormTrain(1e-12, lab.Make({4, 1}, {1, 3, 5, 7}), lab.Make({1}, {2}), lab.Make({1}, {10}), y,
                                      mean, variance, nullptr));
    CHECK(lab.Read(mean) == Values{4});
    CHECK(lab.Read(variance) == Values{5});
    const double unit = 2 / std::sqrt(5.0);
    CHECK(Distance(lab.Read(y), {10 - 3 * unit, 10 - unit, 10 + unit, 10 + 3 * unit}) < 1e-6);
  }
}

TEST_CASE("activations and their gradients agree with the reference", "[kernels]") {
  for (ActivationKind kind : kActivations) {
    for (std::int64_t count : {0, 1, 15, 1000, 70001}) {
      CAPTURE(static_cast<int>(kind), count);
      Rng rng(41);
      const double range = count == 1 ? 2 : 12;  // one element alone must not be in a saturated tail
      Values values = RandomValues(rng, count, -range, range);
      if (count == 1000) {
        for (std::size_t i = 0; i < 400; ++i) values[i] = static_cast<float>(values[i] * 1e-3);
      }
      const Values dys = RandomValues(rng, count);
      Conform([&](Lab& lab) {
        Tensor x = lab.Make({count}, values), dy = lab.Make({count}, dys);
        Tensor y = lab.Output({count}), dx = lab.Output({count}), in_place = lab.Make({count}, values);
        RequireOk(lab.backend().Activation(kind, x, y));
        RequireOk(lab.backend().ActivationBackward(kind, x, y, dy, dx));
        RequireOk(lab.backend().Activation(kind, in_place, in_place));
        CHECK(lab.Read(in_place) == lab.Read(y));
        RequireOk(lab.backend().ActivationBackward(kind, x, y, dy, dy));
        CHECK(lab.Read(dy) == lab.Read(dx));
        return std::vector<Values>{lab.Read(y), lab.Read(dx)};
      });
    }
  }
}

TEST_CASE("small and large arguments of activations stay exact to a few ulps", "[kernels]") {
  const Values points = {1e-6, -1e-3, 0.1, -0.624, 0.626, 5, -5, 80, -80, 1000, -1000, 0};
  for (const NamedBackend& named : BackendsUnderTest()) {
    INFO(named.name);
    auto backend = named.make();
    Lab lab(*backend);
    Tensor x = lab.Make({12}, points), y = lab.Output({12});
    RequireOk(backend->Activation(ActivationKind::kTanh, x, y));
    Values actual = lab.Read(y);
    for (std::size_t i = 0; i < points.size(); ++i) CHECK(actual[i] == Approx(std::tanh(points[i])).epsilon(1e-6));
    RequireOk(backend->Activation(ActivationKind::kSigmoid, x, y));
    actual = lab.Read(y);
    for (std::size_t i = 0; i < points.size(); ++i) {
      CHECK(actual[i] == Approx(1 / (1 + std::exp(-points[i]))).epsilon(1e-6).margin(1e-30));
    }
  }
}

TEST_CASE("a NaN or an infinity passes every operation and is counted", "[kernels]") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const NamedBackend& named : BackendsUnderTest()) {
    INFO(named.name);
    auto backend = named.make();
    Lab lab(*backend);
    Values values(40, 1.0);
    values[3] = nan;
    values[21] = inf;
    values[39] = -inf;
    Tensor x = lab.Make({40}, values), y = lab.Output({40});
    CHECK(*backend->CountNonFinite(x) == 3);
    for (ActivationKind kind : kActivations) {
      RequireOk(backend->Activation(kind, x, y));
      CHECK(std::isnan(lab.Read(y)[3]));
    }
    Tensor image = lab.Make({2, 20}, values), out = lab.Output({2, 3});
    RequireOk(backend->Dense(image, lab.Make({20, 3}, Values(60, 1.0)), {}, out));
    CHECK(*backend->CountNonFinite(out) == 6);
    CHECK(*backend->CountNonFinite(lab.Make({0}, {})) == 0);
  }
}

TEST_CASE("dropout keeps what the row's key says, whoever computes it", "[kernels]") {
  for (std::int64_t columns : {1, 3, 64, 1001}) {
    for (std::int64_t rows : {0, 1, 33}) {
      CAPTURE(rows, columns);
      std::vector<std::uint64_t> keys;
      for (std::int64_t r = 0; r < rows; ++r) keys.push_back(MixKey(9, static_cast<std::uint64_t>(r)));
      Conform(
          [&](Lab& lab) {
            Tensor x = lab.Make({rows, columns}, Values(static_cast<std::size_t>(rows * columns), 3.0));
            Tensor y = lab.Output({rows, columns});
            RequireOk(lab.backend().Dropout(0.25, keys, x, y));
            RequireOk(lab.backend().Dropout(0.25, keys, x, x));
            CHECK(lab.Read(x) == lab.Read(y));
            const Values values = lab.Read(y);
            for (std::int64_t i = 0; i < rows * columns; ++i) {
              const auto j = static_cast<std::uint64_t>(i % columns);
              const bool kept = UnitFloat(Philox(keys[i / columns], 0, j / 4)[j % 4]) >= 0.25f;
              REQUIRE(values[i] == Approx(kept ? 4.0 : 0.0));
            }
            return std::vector<Values>{values};
          },
          1e-6);
    }
  }
}

TEST_CASE("elementwise operations agree with the reference", "[kernels]") {
  for (std::int64_t count : {0, 1, 17, 40000}) {
    CAPTURE(count);
    Rng rng(51);
    const Values a_values = RandomValues(rng, count), b_values = RandomValues(rng, count);
    Conform([&](Lab& lab) {
      Backend& k = lab.backend();
      Tensor a = lab.Make({count}, a_values), b = lab.Make({count}, b_values);
      Tensor sum = lab.Output({count}), copy = lab.Output({count, 1}), filled = lab.Output({count});
      RequireOk(k.Add(a, b, sum));
      RequireOk(k.Copy(a, copy));
      RequireOk(k.Fill(0.25, filled));
      RequireOk(k.Accumulate(b, a));
      CHECK(lab.Read(a) == lab.Read(sum));
      RequireOk(k.Scale(-3, b));
      return std::vector<Values>{lab.Read(sum), lab.Read(copy), lab.Read(filled), lab.Read(b)};
    });
  }
}

TEST_CASE("concat joins along the last axis and split takes it apart", "[kernels]") {
  for (std::int64_t n : {0, 1, 33}) {
    Rng rng(61);
    const Values a_values = RandomValues(rng, n * 2 * 3), b_values = RandomValues(rng, n * 2);
    const Values c_values = RandomValues(rng, n * 2 * 500);
    Conform(
        [&](Lab& lab) {
          Tensor a = lab.Make({n, 2, 3}, a_values), b = lab.Make({n, 2, 1}, b_values),
                 c = lab.Make({n, 2, 500}, c_values);
          Tensor y = lab.Output({n, 2, 504});
          const std::vector<ConstTensor> inputs = {a, b, c};
          RequireOk(lab.backend().Concat(inputs, y));
          const std::vector<Tensor> outputs = {lab.Output(a.shape), lab.Output(b.shape), lab.Output(c.shape)};
          RequireOk(lab.backend().Split(y, outputs));
          CHECK(lab.Read(outputs[0]) == a_values);
          CHECK(lab.Read(outputs[1]) == b_values);
          CHECK(lab.Read(outputs[2]) == c_values);
          return std::vector<Values>{lab.Read(y)};
        },
        0);
  }
}

TEST_CASE("row operations refuse shapes and parameters that do not fit", "[kernels]") {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    Lab lab(*backend);
    Tensor x = lab.Output({2, 3}), y = lab.Output({2, 3}), three = lab.Output({3}), two = lab.Output({2});
    const std::vector<std::uint64_t> keys = {1, 2};
    CHECK(backend->Add(x, three, y).code() == invalid);
    CHECK(backend->Copy(x, two).code() == invalid);
    CHECK(backend->Dropout(1.0, keys, x, y).code() == invalid);
    CHECK(backend->Dropout(-0.1, keys, x, y).code() == invalid);
    CHECK(backend->Dropout(0.5, std::span(keys).first(1), x, y).code() == invalid);
    CHECK(backend->BatchNormTrain(kEpsilon, x, two, three, y, three, three, nullptr).code() == invalid);
    CHECK(backend->BatchNormTrain(0, x, three, three, y, three, three, nullptr).code() == invalid);
    CHECK(backend->LayerNorm(kEpsilon, x, three, three, y, three, two).code() == invalid);
    CHECK(backend->Concat(std::vector<ConstTensor>{x, x}, lab.Output({2, 5})).code() == invalid);
    CHECK(backend->Add(Tensor{nullptr, {2, 3}, backend->dtype()}, x, y).code() == invalid);
  }
}

}  // namespace
}  // namespace evenkeel::testing
