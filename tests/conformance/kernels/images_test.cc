// Convolution and pooling, on every backend.
#include "conformance/kernels/lab.h"

namespace evenkeel::testing {
namespace {

struct ConvCase {
  std::int64_t n, h, w, c, out, kernel_h, kernel_w;
  Conv2dSpec spec;
};

std::vector<Values> ConvPasses(Lab& lab, const ConvCase& k, bool optional) {
  Rng rng(5, static_cast<std::uint64_t>(k.n + 100 * k.c + 10000 * k.out));
  const Shape x_shape = {k.n, k.h, k.w, k.c}, w_shape = {k.kernel_h, k.kernel_w, k.c / k.spec.groups, k.out};
  const Shape y_shape = {k.n, WindowOutput(k.h, k.kernel_h, k.spec.stride_h, k.spec.pad_top + k.spec.pad_bottom),
                         WindowOutput(k.w, k.kernel_w, k.spec.stride_w, k.spec.pad_left + k.spec.pad_right), k.out};
  Tensor x = lab.Make(x_shape, RandomValues(rng, x_shape.elements()));
  Tensor w = lab.Make(w_shape, RandomValues(rng, w_shape.elements()));
  Tensor b = lab.Make({k.out}, RandomValues(rng, k.out));
  Tensor dy = lab.Make(y_shape, RandomValues(rng, y_shape.elements()));
  Tensor y = lab.Output(y_shape), dw = lab.Output(w_shape), dx = lab.Output(x_shape), db = lab.Output({k.out});
  lab.backend().WeightsChanged();
  RequireOk(lab.backend().Conv2d(k.spec, x, w, optional ? ConstTensor(b) : ConstTensor(), y));
  RequireOk(lab.backend().Conv2dBackward(k.spec, x, w, dy, optional ? dx : Tensor(), dw, optional ? db : Tensor()));
  if (!optional) return {lab.Read(y), lab.Read(dw)};
  return {lab.Read(y), lab.Read(dx), lab.Read(dw), lab.Read(db)};
}

TEST_CASE("convolution and its gradients agree with the reference on odd shapes", "[kernels]") {
  const std::vector<ConvCase> cases = {
      {0, 5, 5, 3, 4, 3, 3, {.pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1}},
      {1, 5, 5, 1, 1, 1, 1, {}},
      {2, 9, 7, 1, 17, 3, 3, {.pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1}},
      {7, 8, 8, 3, 16, 3, 3, {.pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1}},
      {2, 12, 11, 5, 3, 5, 5, {.stride_h = 2, .stride_w = 3, .pad_top = 2, .pad_bottom = 1, .pad_right = 3}},
      {3, 10, 10, 17, 5, 3, 3, {.stride_h = 2, .stride_w = 2, .pad_bottom = 1, .pad_right = 1}},
      {33, 6, 6, 5, 17, 3, 1, {.pad_top = 2, .pad_left = 0}},
      {2, 9, 9, 6, 9, 3, 3, {.pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1, .groups = 3}},
      {2, 9, 9, 32, 32, 3, 3, {.pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1, .groups = 32}},
      {2, 7, 7, 5, 10, 3, 3, {.stride_h = 3, .stride_w = 3, .groups = 5}},
      {4, 8, 8, 32, 64, 3, 3, {.pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1}},
      {4, 8, 8, 16, 32, 1, 1, {.stride_h = 2, .stride_w = 2}},
      {2, 3, 3, 2, 3, 5, 5, {.pad_top = 2, .pad_bottom = 2, .pad_left = 2, .pad_right = 2}},
  };
  for (const ConvCase& k : cases) {
    CAPTURE(k.n, k.h, k.w, k.c, k.out, k.kernel_h, k.kernel_w, k.spec.groups, k.spec.stride_h);
    Conform([&](Lab& lab) { return ConvPasses(lab, k, true); });
    Conform([&](Lab& lab) { return ConvPasses(lab, k, false); });
  }
}

TEST_CASE("convolution agrees with the reference on random geometry", "[kernels]") {
  Rng rng(11);
  const std::int64_t channels[] = {1, 3, 4, 5, 8, 17};
  const std::int64_t kernels[] = {1, 3, 5};
  for (int i = 0; i < 40; ++i) {
    ConvCase k{};
    k.n = 1 + static_cast<std::int64_t>(rng.Below(4));
    k.h = 5 + static_cast<std::int64_t>(rng.Below(6));
    k.w = 5 + static_cast<std::int64_t>(rng.Below(6));
    k.spec.groups = 1 + static_cast<std::int64_t>(rng.Below(2));
    k.c = channels[rng.Below(6)] * k.spec.groups;
    k.out = channels[rng.Below(6)] * k.spec.groups;
    k.kernel_h = kernels[rng.Below(3)];
    k.kernel_w = kernels[rng.Below(3)];
    k.spec.stride_h = 1 + static_cast<std::int64_t>(rng.Below(3));
    k.spec.stride_w = 1 + static_cast<std::int64_t>(rng.Below(3));
    for (auto* pad : {&k.spec.pad_top, &k.spec.pad_bottom, &k.spec.pad_left, &k.spec.pad_right}) {
      *pad = static_cast<std::int64_t>(rng.Below(3));
    }
    CAPTURE(k.n, k.h, k.w, k.c, k.out, k.kernel_h, k.kernel_w, k.spec.groups, k.spec.stride_h, k.spec.stride_w,
            k.spec.pad_top, k.spec.pad_bottom, k.spec.pad_left, k.spec.pad_right);
    Conform([&](Lab& lab) { return ConvPasses(lab, k, true); });
  }
}

TEST_CASE("convolution computes a known sum", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    INFO(named.name);
    auto backend = named.make();
    Lab lab(*backend);
    // A 2x2 kernel over [[1,2,3],[4,5,6],[7,8,9]]; not flipped.
    Tensor y = lab.Output({1, 2, 2, 1});
    RequireOk(backend->Conv2d({}, lab.Make({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
                              lab.Make({2, 2, 1, 1}, {1, 10, 100, 1000}), lab.Make({1}, {0.5}), y));
    CHECK(lab.Read(y) == Values{5421.5, 6532.5, 8754.5, 9865.5});
  }
}

TEST_CASE("weights that changed in place are seen after WeightsChanged", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    INFO(named.name);
    auto backend = named.make();
    Lab lab(*backend);
    Tensor x = lab.Make({1, 4, 4, 16}, Values(256, 1.0)), w = lab.Make({1, 1, 16, 16}, Values(256, 1.0));
    Tensor y = lab.Output({1, 4, 4, 16}), dx = lab.Output({1, 4, 4, 16}), dw = lab.Output({1, 1, 16, 16});
    RequireOk(backend->Conv2d({}, x, w, {}, y));
    CHECK(lab.Read(y) == Values(256, 16.0));
    RequireOk(backend->Fill(2, w));
    backend->WeightsChanged();
    RequireOk(backend->Conv2d({}, x, w, {}, y));
    RequireOk(backend->Conv2dBackward({}, x, w, x, dx, dw, {}));
    CHECK(lab.Read(y) == Values(256, 32.0));
    CHECK(lab.Read(dx) == Values(256, 32.0));
  }
}

TEST_CASE("two layers of one shape do not share each other's weights", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    Lab lab(*backend);
    Tensor x = lab.Make({1, 4, 4, 16}, Values(256, 1.0)), y = lab.Output({1, 4, 4, 16});
    Tensor ones = lab.Make({1, 1, 16, 16}, Values(256, 1.0)), threes = lab.Make({1, 1, 16, 16}, Values(256, 3.0));
    for (int pass = 0; pass < 2; ++pass) {
      RequireOk(backend->Conv2d({}, x, ones, {}, y));
      CHECK(lab.Read(y) == Values(256, 16.0));
      RequireOk(backend->Conv2d({}, x, threes, {}, y));
      CHECK(lab.Read(y) == Values(256, 48.0));
    }
  }
}

TEST_CASE("more shapes than are kept compute as well as the first", "[kernels]") {
  auto cpu = *MakeCpuBackend({.threads = 1});
  Lab lab(*cpu);
  Tensor w = lab.Make({3, 2}, {1, 0, 0, 1, 2, -1});
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t n = 1; n <= 300; ++n) {
      Tensor y = lab.Output({n, 2});
      RequireOk(cpu->Dense(lab.Make({n, 3}, Values(static_cast<std::size_t>(3 * n), 1.0)), w, {}, y));
      const Values values = lab.Read(y);
      REQUIRE(std::all_of(values.begin(), values.begin() + 1, [](double v) { return v == 3; }));
      REQUIRE(values.back() == 0);
    }
  }
}

std::vector<Values> PoolPasses(Lab& lab, const Pool2dSpec& spec, const Shape& shape) {
  Rng rng(23, static_cast<std::uint64_t>(shape.elements()));
  const Shape y_shape = {shape[0], WindowOutput(shape[1], spec.kernel_h, spec.stride_h, spec.pad_top + spec.pad_bottom),
                         WindowOutput(shape[2], spec.kernel_w, spec.stride_w, spec.pad_left + spec.pad_right),
                         shape[3]};
  Tensor x = lab.Make(shape, RandomValues(rng, shape.elements()));
  Tensor dy = lab.Make(y_shape, RandomValues(rng, y_shape.elements()));
  Tensor y = lab.Output(y_shape), dx = lab.Output(shape);
  auto bytes = lab.backend().Pool2dWorkspaceBytes(spec, shape);
  RequireOk(bytes.status());
  void* workspace = lab.Bytes(*bytes);
  RequireOk(lab.backend().Pool2d(spec, x, y, workspace));
  RequireOk(lab.backend().Pool2dBackward(spec, x, dy, workspace, dx));
  return {lab.Read(y), lab.Read(dx)};
}

TEST_CASE("pooling and its gradients agree with the reference", "[kernels]") {
  for (Pool2dSpec::Kind kind : {Pool2dSpec::Kind::kMax, Pool2dSpec::Kind::kAverage}) {
    for (std::int64_t n : {0, 1, 7}) {
      for (std::int64_t c : {1, 3, 17, 64, 70}) {
        for (const Pool2dSpec& base :
             {Pool2dSpec{}, Pool2dSpec{.kernel_h = 3, .kernel_w = 3, .pad_top = 1, .pad_left = 1, .pad_right = 2},
              Pool2dSpec{.kernel_h = 1, .kernel_w = 5, .stride_h = 1, .stride_w = 3, .pad_left = 4}}) {
          Pool2dSpec spec = base;
          spec.kind = kind;
          CAPTURE(static_cast<int>(kind), n, c, spec.kernel_h, spec.kernel_w);
          Conform([&](Lab& lab) { return PoolPasses(lab, spec, {n, 7, 9, c}); });
        }
      }
    }
    Pool2dSpec whole{.kind = kind, .kernel_h = 17, .kernel_w = 17};  // more taps than a byte counts
    Conform([&](Lab& lab) { return PoolPasses(lab, whole, {2, 18, 20, 3}); });
  }
}

TEST_CASE("max pooling takes the first of equals and lets a NaN through", "[kernels]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const NamedBackend& named : BackendsUnderTest()) {
    INFO(named.name);
    auto backend = named.make();
    Lab lab(*backend);
    Tensor x = lab.Make({1, 2, 4, 1}, {5, 5, nan, 9, 5, 5, 9, 9}), y = lab.Output({1, 1, 2, 1}),
           dx = lab.Output(x.shape);
    void* workspace = lab.Bytes(*backend->Pool2dWorkspaceBytes({}, x.shape));
    RequireOk(backend->Pool2d({}, x, y, workspace));
    CHECK(lab.Read(y)[0] == 5);
    CHECK(std::isnan(lab.Read(y)[1]));
    RequireOk(backend->Pool2dBackward({}, x, lab.Make({1, 1, 2, 1}, {2, 3}), workspace, dx));
    CHECK(lab.Read(dx) == Values{2, 0, 3, 0, 0, 0, 0, 0});
  }
}

TEST_CASE("global average pooling and its gradient agree with the reference", "[kernels]") {
  for (std::int64_t n : {0, 1, 7, 33}) {
    for (std::int64_t c : {1, 5, 64, 130}) {
      CAPTURE(n, c);
      Conform([&](Lab& lab) {
        Rng rng(2, static_cast<std::uint64_t>(n * 1000 + c));
        Tensor x = lab.Make({n, 5, 3, c}, RandomValues(rng, n * 15 * c)), y = lab.Output({n, c});
        Tensor dy = lab.Make({n, c}, RandomValues(rng, n * c)), dx = lab.Output({n, 5, 3, c});
        RequireOk(lab.backend().GlobalAveragePool(x, y));
        RequireOk(lab.backend().GlobalAveragePoolBackward(dy, dx));
        return std::vector<Values>{lab.Read(y), lab.Read(dx)};
      });
    }
  }
}

TEST_CASE("convolution and pooling refuse geometry that does not fit", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    Lab lab(*backend);
    auto code = [&](const Conv2dSpec& spec, const Shape& x, const Shape& w, const Shape& y) {
      return backend->Conv2d(spec, lab.Output(x), lab.Output(w), {}, lab.Output(y)).code();
    };
    const auto invalid = absl::StatusCode::kInvalidArgument;
    CHECK(code({}, {1, 4, 4, 3}, {3, 3, 4, 8}, {1, 2, 2, 8}) == invalid);               // channels
    CHECK(code({.groups = 2}, {1, 4, 4, 3}, {3, 3, 1, 8}, {1, 2, 2, 8}) == invalid);    // groups divide nothing
    CHECK(code({}, {1, 2, 2, 3}, {3, 3, 3, 8}, {1, 0, 0, 8}) == invalid);               // kernel larger than image
    CHECK(code({.stride_h = 0}, {1, 4, 4, 3}, {3, 3, 3, 8}, {1, 2, 2, 8}) == invalid);  // stride
    CHECK(code({}, {1, 4, 4, 3}, {3, 3, 3, 8}, {1, 3, 3, 8}) == invalid);               // output
    CHECK(backend->Pool2dWorkspaceBytes({.pad_top = 2}, {1, 4, 4, 1}).status().code() == invalid);
    CHECK(backend->Pool2dWorkspaceBytes({}, {4, 4, 1}).status().code() == invalid);
  }
}

}  // namespace
}  // namespace evenkeel::testing
