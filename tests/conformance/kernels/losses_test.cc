// Losses and softmax, on every backend.
#include "conformance/kernels/lab.h"

namespace evenkeel::testing {
namespace {

constexpr LossKind kLosses[] = {LossKind::kSoftmaxCrossEntropy, LossKind::kSigmoidCrossEntropy, LossKind::kMse,
                                LossKind::kHuber, LossKind::kHinge};

bool TakesClasses(LossKind kind, std::int64_t k) {
  return kind == LossKind::kSoftmaxCrossEntropy || (kind == LossKind::kHinge && k > 1);
}

Values Labels(Rng& rng, LossKind kind, std::int64_t n, std::int64_t k) {
  Values labels = RandomValues(rng, TakesClasses(kind, k) || kind == LossKind::kHinge ? n : n * k, 0, 1);
  for (double& label : labels) {
    if (TakesClasses(kind, k)) label = static_cast<double>(rng.Below(static_cast<std::uint64_t>(k)));
    if (kind == LossKind::kHinge && k == 1) label = rng.Below(2) == 0 ? -1 : 1;
  }
  return labels;
}

TEST_CASE("losses and their gradients agree with the reference", "[kernels]") {
  for (LossKind kind : kLosses) {
    for (std::int64_t n : {0, 1, 7, 33}) {
      for (std::int64_t k : {1, 2, 10, 1000}) {
        for (double smoothing : {0.0, 0.1}) {
          CAPTURE(static_cast<int>(kind), n, k, smoothing);
          Rng rng(71);
          const Values outputs = RandomValues(rng, n * k, -4, 4), labels = Labels(rng, kind, n, k);
          const bool one = TakesClasses(kind, k) || kind == LossKind::kHinge;
          const Shape label_shape = one ? Shape{n} : Shape{n, k};
          const LossSpec spec{kind, smoothing, 0.75};
          Conform([&](Lab& lab) {
            Tensor x = lab.Make({n, k}, outputs), truth = lab.Make(label_shape, labels);
            Tensor loss = lab.Output({n}), alone = lab.Output({n}), gradient = lab.Output({n, k});
            RequireOk(lab.backend().Loss(spec, x, truth, loss, gradient));
            RequireOk(lab.backend().Loss(spec, x, truth, alone, {}));
            CHECK(Distance(lab.Read(alone), lab.Read(loss)) < 1e-6);
            return std::vector<Values>{lab.Read(loss), lab.Read(gradient)};
          });
        }
      }
    }
  }
}

TEST_CASE("losses have their textbook values", "[kernels]") {
  struct Known {
    LossSpec spec;
    Shape outputs_shape;
    Values outputs, labels;
    double loss;
    Values gradient;
  };
  const double e = std::exp(1.0);
  const std::vector<Known> cases = {
      {{LossKind::kSoftmaxCrossEntropy}, {1, 2}, {1, 0}, {0}, std::log(1 + 1 / e), {-1 / (1 + e), 1 / (1 + e)}},
      {{LossKind::kSoftmaxCrossEntropy, 0.2}, {1, 2}, {0, 0}, {1}, std::log(2.0), {0.4, -0.4}},
      {{LossKind::kSigmoidCrossEntropy}, {1, 1}, {0}, {1}, std::log(2.0), {-0.5}},
      {{LossKind::kSigmoidCrossEntropy}, {1, 1}, {100}, {0}, 100, {1}},
      {{LossKind::kMse}, {1, 2}, {1, 4}, {0, 2}, 2.5, {1, 2}},
      {{LossKind::kHuber, 0, 1}, {1, 2}, {0.5, 4}, {0, 0}, (0.125 + 3.5) / 2, {0.25, 0.5}},
      {{LossKind::kHinge}, {1, 1}, {0.25}, {1}, 0.75, {-1}},
      {{LossKind::kHinge}, {1, 1}, {0.25}, {0}, 1.25, {1}},
      {{LossKind::kHinge}, {1, 1}, {-3}, {-1}, 0, {0}},
      {{LossKind::kHinge}, {1, 3}, {1, 1.5, 0}, {0}, 1.5, {-1, 1, 0}},
      {{LossKind::kHinge}, {1, 3}, {3, 1.5, 0}, {0}, 0, {0, 0, 0}},
  };
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    for (const Known& known : cases) {
      INFO(named.name << ", loss " << static_cast<int>(known.spec.kind) << " = " << known.loss);
      Lab lab(*backend);
      const bool one = known.labels.size() == 1;
      Tensor loss = lab.Output({1}), gradient = lab.Output(known.outputs_shape);
      RequireOk(backend->Loss(known.spec, lab.Make(known.outputs_shape, known.outputs),
                              lab.Make(one ? Shape{1} : known.outputs_shape, known.labels), loss, gradient));
      CHECK(lab.Read(loss)[0] == Approx(known.loss).epsilon(1e-6).margin(1e-7));
      const Values slopes = lab.Read(gradient);
      for (std::size_t i = 0; i < slopes.size(); ++i) CHECK(slopes[i] == Approx(known.gradient[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("extreme logits neither overflow nor lose the loss", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    INFO(named.name);
    auto backend = named.make();
    Lab lab(*backend);
    Tensor loss = lab.Output({2}), gradient = lab.Output({2, 3});
    RequireOk(
        backend->Loss({}, lab.Make({2, 3}, {1000, -1000, 0, 1000, -1000, 0}), lab.Make({2}, {0, 1}), loss, gradient));
    CHECK(lab.Read(loss) == Values{0, 2000});
    CHECK(lab.Read(gradient) == Values{0, 0, 0, 1, -1, 0});
  }
}

TEST_CASE("a NaN output gives a NaN loss, for every loss", "[kernels]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    for (LossKind kind : kLosses) {
      for (std::int64_t k : {1, 3}) {
        for (std::int64_t at = 0; at < k; ++at) {
          CAPTURE(named.name, static_cast<int>(kind), k, at);
          Lab lab(*backend);
          Values outputs(static_cast<std::size_t>(k), 0.5);
          outputs[at] = nan;
          const bool one = TakesClasses(kind, k) || kind == LossKind::kHinge;
          Tensor labels = lab.Make(one ? Shape{1} : Shape{1, k}, Values(one ? 1 : static_cast<std::size_t>(k), 0.0));
          Tensor loss = lab.Output({1}), gradient = lab.Output({1, k});
          RequireOk(backend->Fill(0, loss));
          RequireOk(backend->Loss({kind}, lab.Make({1, k}, outputs), labels, loss, gradient));
          CHECK(std::isnan(lab.Read(loss)[0]));
        }
      }
    }
  }
}

TEST_CASE("a label that is no class index is refused and named", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    Lab lab(*backend);
    for (double label : {3.0, -1.0, 0.5}) {
      absl::Status status =
          backend->Loss({}, lab.Make({2, 3}, Values(6, 0.0)), lab.Make({2}, {0, label}), lab.Output({2}), {});
      CHECK(status.code() == absl::StatusCode::kInvalidArgument);
      CHECK(std::string(status.message()).find("sample 1") != std::string::npos);
    }
    CHECK(backend->Loss({}, lab.Output({2, 3}), lab.Output({3}), lab.Output({2}), {}).code() ==
          absl::StatusCode::kInvalidArgument);
    CHECK(backend->Loss({LossKind::kMse}, lab.Output({2, 3}), lab.Output({2}), lab.Output({2}), {}).code() ==
          absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("softmax agrees with the reference; with one column it is the sigmoid", "[kernels]") {
  for (std::int64_t n : {0, 1, 33}) {
    for (std::int64_t k : {1, 2, 17, 1000}) {
      CAPTURE(n, k);
      Rng rng(81);
      const Values values = RandomValues(rng, n * k, -5, 5);
      Conform([&](Lab& lab) {
        Tensor x = lab.Make({n, k}, values), y = lab.Output({n, k});
        RequireOk(lab.backend().Softmax(x, y));
        RequireOk(lab.backend().Softmax(x, x));
        CHECK(lab.Read(x) == lab.Read(y));
        return std::vector<Values>{lab.Read(y)};
      });
    }
  }
}

}  // namespace
}  // namespace evenkeel::testing
