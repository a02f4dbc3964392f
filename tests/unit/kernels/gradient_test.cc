// Every backward operation of the reference against central differences in double. The scalar is sum(r * y) for a
// random r, so that dy = r.
#include "conformance/kernels/lab.h"

namespace evenkeel::testing {
namespace {

using Scalar = std::function<double(const Values&)>;

void CheckGradient(const Scalar& f, const Values& at, const Values& gradient) {
  constexpr double kStep = 1e-6;
  REQUIRE(at.size() == gradient.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    Values point = at;
    point[i] = at[i] + kStep;
    const double above = f(point);
    point[i] = at[i] - kStep;
    const double numeric = (above - f(point)) / (2 * kStep);
    INFO("element " << i);
    CHECK(gradient[i] == Approx(numeric).epsilon(1e-6).margin(1e-7));
  }
}

double Dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class Gradients {
 protected:
  std::unique_ptr<Backend> backend_ = MakeReferenceBackend(DType::kFloat64);
  Rng rng_{91};
  Values Random(const Shape& shape, double low = -1, double high = 1) {
    return RandomValues(rng_, shape.elements(), low, high);
  }
};

TEST_CASE_METHOD(Gradients, "the gradients of dense are its derivatives", "[kernels]") {
  const Shape xs = {3, 4}, ws = {4, 5}, bs = {5}, ys = {3, 5};
  const Values x = Random(xs), w = Random(ws), b = Random(bs), r = Random(ys);
  auto forward = [&](const Values& x, const Values& w, const Values& b) {
    Lab lab(*backend_);
    Tensor y = lab.Output(ys);
    RequireOk(backend_->Dense(lab.Make(xs, x), lab.Make(ws, w), lab.Make(bs, b), y));
    return Dot(lab.Read(y), r);
  };
  Lab lab(*backend_);
  Tensor dx = lab.Output(xs), dw = lab.Output(ws), db = lab.Output(bs);
  RequireOk(backend_->DenseBackward(lab.Make(xs, x), lab.Make(ws, w), lab.Make(ys, r), dx, dw, db));
  CheckGradient([&](const Values& v) { return forward(v, w, b); }, x, lab.Read(dx));
  CheckGradient([&](const Values& v) { return forward(x, v, b); }, w, lab.Read(dw));
  CheckGradient([&](const Values& v) { return forward(x, w, v); }, b, lab.Read(db));
}

TEST_CASE_METHOD(Gradients, "the gradients of a sparse product are its derivatives", "[kernels]") {
  const std::vector<std::int64_t> offsets = {0, 2, 2, 3};
  const std::vector<std::int32_t> columns = {0, 3, 1};
  const std::vector<float> values = {0.5f, -2, 3};
  const CsrView x{3, 4, offsets, columns, values};
  const Shape ws = {4, 2}, bs = {2}, ys = {3, 2};
  const Values w = Random(ws), b = Random(bs), r = Random(ys);
  auto forward = [&](const Values& w, const Values& b) {
    Lab lab(*backend_);
    Tensor y = lab.Output(ys);
    RequireOk(backend_->SparseDense(x, lab.Make(ws, w), lab.Make(bs, b), y));
    return Dot(lab.Read(y), r);
  };
  Lab lab(*backend_);
  Tensor dw = lab.Output(ws), db = lab.Output(bs);
  RequireOk(backend_->SparseDenseBackward(x, lab.Make(ys, r), dw, db));
  CheckGradient([&](const Values& v) { return forward(v, b); }, w, lab.Read(dw));
  CheckGradient([&](const Values& v) { return forward(w, v); }, b, lab.Read(db));
}

TEST_CASE_METHOD(Gradients, "the gradients of convolution are its derivatives", "[kernels]") {
  const Conv2dSpec spec{
      .stride_h = 2, .stride_w = 1, .pad_top = 1, .pad_bottom = 0, .pad_left = 2, .pad_right = 1, .groups = 2};
  const Shape xs = {2, 5, 4, 4}, ws = {3, 3, 2, 6}, bs = {6}, ys = {2, 2, 5, 6};
  const Values x = Random(xs), w = Random(ws), b = Random(bs), r = Random(ys);
  auto forward = [&](const Values& x, const Values& w, const Values& b) {
    Lab lab(*backend_);
    Tensor y = lab.Output(ys);
    RequireOk(backend_->Conv2d(spec, lab.Make(xs, x), lab.Make(ws, w), lab.Make(bs, b), y));
    return Dot(lab.Read(y), r);
  };
  Lab lab(*backend_);
  Tensor dx = lab.Output(xs), dw = lab.Output(ws), db = lab.Output(bs);
  RequireOk(backend_->Conv2dBackward(spec, lab.Make(xs, x), lab.Make(ws, w), lab.Make(ys, r), dx, dw, db));
  CheckGradient([&](const Values& v) { return forward(v, w, b); }, x, lab.Read(dx));
  CheckGradient([&](const Values& v) { return forward(x, v, b); }, w, lab.Read(dw));
  CheckGradient([&](const Values& v) { return forward(x, w, v); }, b, lab.Read(db));
}

TEST_CASE_METHOD(Gradients, "the gradients of pooling are its derivatives", "[kernels]") {
  for (Pool2dSpec::Kind kind : {Pool2dSpec::Kind::kMax, Pool2dSpec::Kind::kAverage}) {
    const Pool2dSpec spec{
        .kind = kind, .kernel_h = 3, .kernel_w = 2, .stride_h = 2, .stride_w = 1, .pad_top = 1, .pad_right = 1};
    const Shape xs = {2, 5, 4, 3}, ys = {2, 2, 4, 3};
    const Values x = Random(xs), r = Random(ys);
    auto forward = [&](const Values& x) {
      Lab lab(*backend_);
      Tensor y = lab.Output(ys);
      RequireOk(backend_->Pool2d(spec, lab.Make(xs, x), y, lab.Bytes(*backend_->Pool2dWorkspaceBytes(spec, xs))));
      return Dot(lab.Read(y), r);
    };
    Lab lab(*backend_);
    Tensor input = lab.Make(xs, x), y = lab.Output(ys), dx = lab.Output(xs);
    void* workspace = lab.Bytes(*backend_->Pool2dWorkspaceBytes(spec, xs));
    RequireOk(backend_->Pool2d(spec, input, y, workspace));
    RequireOk(backend_->Pool2dBackward(spec, input, lab.Make(ys, r), workspace, dx));
    CheckGradient(forward, x, lab.Read(dx));
  }
}

TEST_CASE_METHOD(Gradients, "the gradient of global average pooling is its derivative", "[kernels]") {
  const Shape xs = {2, 3, 2, 3}, ys = {2, 3};
  const Values x = Random(xs), r = Random(ys);
  auto forward = [&](const Values& x) {
    Lab lab(*backend_);
    Tensor y = lab.Output(ys);
    RequireOk(backend_->GlobalAveragePool(lab.Make(xs, x), y));
    return Dot(lab.Read(y), r);
  };
  Lab lab(*backend_);
  Tensor dx = lab.Output(xs);
  RequireOk(backend_->GlobalAveragePoolBackward(lab.Make(ys, r), dx));
  CheckGradient(forward, x, lab.Read(dx));
}

TEST_CASE_METHOD(Gradients, "the gradients of batch and layer norm are their derivatives", "[kernels]") {
  constexpr double kEpsilon = 1e-3;
  for (const auto& [batch, relu] : {std::pair(true, false), std::pair(true, true), std::pair(false, false)}) {
    CAPTURE(batch, relu);
    const Shape xs = {4, 3, 5}, cs = {5}, ss = batch ? Shape{5} : Shape{4, 3};
    const Values x = Random(xs, -2, 3), gamma = Random(cs, 0.5, 2), beta = Random(cs), r = Random(xs);
    void* mask = nullptr;
    auto run = [&, batch = batch, relu = relu](Lab& lab, const Tensor& xt, const Tensor& g, const Tensor& b, Tensor y,
                                               Tensor mean, Tensor variance) {
      if (relu) mask = lab.Bytes(*backend_->BatchNormMaskBytes(xs));
      RequireOk(batch ? backend_->BatchNormTrain(kEpsilon, xt, g, b, y, mean, variance, mask)
                      : backend_->LayerNorm(kEpsilon, xt, g, b, y, mean, variance));
    };
    auto forward = [&](const Values& x, const Values& gamma, const Values& beta) {
      Lab lab(*backend_);
      Tensor y = lab.Output(xs);
      run(lab, lab.Make(xs, x), lab.Make(cs, gamma), lab.Make(cs, beta), y, lab.Output(ss), lab.Output(ss));
      return Dot(lab.Read(y), r);
    };
    Lab lab(*backend_);
    Tensor xt = lab.Make(xs, x), g = lab.Make(cs, gamma), b = lab.Make(cs, beta), y = lab.Output(xs);
    Tensor mean = lab.Output(ss), variance = lab.Output(ss), dx = lab.Output(xs), dg = lab.Output(cs),
           db = lab.Output(cs);
    run(lab, xt, g, b, y, mean, variance);
    RequireOk(batch ? backend_->BatchNormBackward(kEpsilon, xt, g, mean, variance, lab.Make(xs, r), dx, dg, db, mask)
                    : backend_->LayerNormBackward(kEpsilon, xt, g, mean, variance, lab.Make(xs, r), dx, dg, db));
    CheckGradient([&](const Values& v) { return forward(v, gamma, beta); }, x, lab.Read(dx));
    CheckGradient([&](const Values& v) { return forward(x, v, beta); }, gamma, lab.Read(dg));
    CheckGradient([&](const Values& v) { return forward(x, gamma, v); }, beta, lab.Read(db));
  }
}

TEST_CASE_METHOD(Gradients, "the gradients of activations are their derivatives", "[kernels]") {
  for (ActivationKind kind :
       {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kTanh, ActivationKind::kSigmoid}) {
    CAPTURE(static_cast<int>(kind));
    const Shape xs = {40};
    const Values x = Random(xs, -4, 4), r = Random(xs);
    auto forward = [&](const Values& x) {
      Lab lab(*backend_);
      Tensor y = lab.Output(xs);
      RequireOk(backend_->Activation(kind, lab.Make(xs, x), y));
      return Dot(lab.Read(y), r);
    };
    Lab lab(*backend_);
    Tensor input = lab.Make(xs, x), y = lab.Output(xs), dx = lab.Output(xs);
    RequireOk(backend_->Activation(kind, input, y));
    RequireOk(backend_->ActivationBackward(kind, input, y, lab.Make(xs, r), dx));
    CheckGradient(forward, x, lab.Read(dx));
  }
}

TEST_CASE_METHOD(Gradients, "the gradient of dropout is its derivative", "[kernels]") {
  const Shape xs = {3, 10};
  const std::vector<std::uint64_t> keys = {4, 5, 6};
  const Values x = Random(xs), r = Random(xs);
  auto forward = [&](const Values& x) {
    Lab lab(*backend_);
    Tensor y = lab.Output(xs);
    RequireOk(backend_->Dropout(0.4, keys, lab.Make(xs, x), y));
    return Dot(lab.Read(y), r);
  };
  Lab lab(*backend_);
  Tensor dx = lab.Output(xs);
  RequireOk(backend_->Dropout(0.4, keys, lab.Make(xs, r), dx));
  CheckGradient(forward, x, lab.Read(dx));
}

TEST_CASE_METHOD(Gradients, "the gradients of losses are the derivatives of their sum", "[kernels]") {
  for (LossKind kind : {LossKind::kSoftmaxCrossEntropy, LossKind::kSigmoidCrossEntropy, LossKind::kMse,
                        LossKind::kHuber, LossKind::kHinge}) {
    for (std::int64_t k : {1, 4}) {
      CAPTURE(static_cast<int>(kind), k);
      const Shape xs = {6, k}, losses = {6};
      const bool one = kind == LossKind::kSoftmaxCrossEntropy || kind == LossKind::kHinge;
      const Shape ls = one ? Shape{6} : xs;
      const Values x = Random(xs, -3, 3);
      Values labels = Random(ls, 0, 1);
      if (one) {
        for (double& label : labels) label = static_cast<double>(rng_.Below(static_cast<std::uint64_t>(k)));
      }
      const LossSpec spec{kind, 0.1, 0.5};
      auto forward = [&](const Values& x) {
        Lab lab(*backend_);
        Tensor loss = lab.Output(losses);
        RequireOk(backend_->Loss(spec, lab.Make(xs, x), lab.Make(ls, labels), loss, {}));
        return Dot(lab.Read(loss), Values(6, 1.0));
      };
      Lab lab(*backend_);
      Tensor loss = lab.Output(losses), gradient = lab.Output(xs);
      RequireOk(backend_->Loss(spec, lab.Make(xs, x), lab.Make(ls, labels), loss, gradient));
      CheckGradient(forward, x, lab.Read(gradient));
    }
  }
}

}  // namespace
}  // namespace evenkeel::testing
