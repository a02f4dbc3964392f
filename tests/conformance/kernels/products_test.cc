// Dense and sparse products, on every backend.
#include "conformance/kernels/lab.h"

namespace evenkeel::testing {
namespace {

std::vector<Values> DensePasses(Lab& lab, std::int64_t n, std::int64_t in, std::int64_t out, bool optional) {
  Rng rng(17, static_cast<std::uint64_t>(n * 10000 + in * 100 + out));
  Tensor x = lab.Make({n, in}, RandomValues(rng, n * in)), w = lab.Make({in, out}, RandomValues(rng, in * out));
  Tensor b = lab.Make({out}, RandomValues(rng, out)), dy = lab.Make({n, out}, RandomValues(rng, n * out));
  Tensor y = lab.Output({n, out}), dw = lab.Output({in, out});
  Tensor dx = lab.Output({n, in}), db = lab.Output({out});
  RequireOk(lab.backend().Dense(x, w, optional ? ConstTensor(b) : ConstTensor(), y));
  RequireOk(lab.backend().DenseBackward(x, w, dy, optional ? dx : Tensor(), dw, optional ? db : Tensor()));
  if (!optional) return {lab.Read(y), lab.Read(dw)};
  return {lab.Read(y), lab.Read(dx), lab.Read(dw), lab.Read(db)};
}

struct Csr {
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> columns;
  std::vector<float> values;
  std::int64_t columns_total;
  CsrView view() const {
    return {static_cast<std::int64_t>(offsets.size()) - 1, columns_total, offsets, columns, values};
  }
};

Csr RandomCsr(Rng& rng, std::int64_t rows, std::int64_t columns) {
  Csr csr;
  csr.columns_total = columns;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      if (rng.Below(3) != 0) continue;
      csr.columns.push_back(static_cast<std::int32_t>(c));
      csr.values.push_back(rng.NextFloat() - 0.5f);
    }
    csr.offsets.push_back(static_cast<std::int64_t>(csr.columns.size()));
  }
  return csr;
}

TEST_CASE("dense and its gradients agree with the reference on any shape", "[kernels]") {
  for (std::int64_t n : {0, 1, 2, 7, 33}) {
    for (std::int64_t in : {1, 3, 17, 100}) {
      for (std::int64_t out : {1, 5, 64}) {
        CAPTURE(n, in, out);
        Conform([&](Lab& lab) { return DensePasses(lab, n, in, out, true); });
      }
    }
  }
  Conform([&](Lab& lab) { return DensePasses(lab, 128, 300, 257, true); });
}

TEST_CASE("dense needs neither bias nor dx nor db", "[kernels]") {
  Conform([&](Lab& lab) { return DensePasses(lab, 7, 5, 3, false); });
}

TEST_CASE("dense computes x w + b", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    Lab lab(*backend);
    Tensor y = lab.Output({2, 2});
    RequireOk(backend->Dense(lab.Make({2, 3}, {1, 2, 3, 4, 5, 6}), lab.Make({3, 2}, {1, 0, 0, 1, 2, -1}),
                             lab.Make({2}, {10, 20}), y));
    CHECK(lab.Read(y) == Values{17, 19, 26, 19});
  }
}

TEST_CASE("a sparse product equals the dense one on the same matrix", "[kernels]") {
  for (std::int64_t n : {0, 1, 7, 33}) {
    for (std::int64_t out : {1, 5, 64}) {
      CAPTURE(n, out);
      Rng rng(3, static_cast<std::uint64_t>(n * 100 + out));
      const std::int64_t in = 41;
      const Csr csr = RandomCsr(rng, n, in);
      Values dense(static_cast<std::size_t>(n * in), 0.0);
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t i = csr.offsets[r]; i < csr.offsets[r + 1]; ++i)
          dense[r * in + csr.columns[i]] = csr.values[i];
      }
      const Values w = RandomValues(rng, in * out), b = RandomValues(rng, out), dy = RandomValues(rng, n * out);
      Conform([&](Lab& lab) {
        Tensor y = lab.Output({n, out}), dw = lab.Output({in, out}), db = lab.Output({out});
        RequireOk(lab.backend().SparseDense(csr.view(), lab.Make({in, out}, w), lab.Make({out}, b), y));
        RequireOk(lab.backend().SparseDenseBackward(csr.view(), lab.Make({n, out}, dy), dw, db));
        Tensor y2 = lab.Output({n, out}), dw2 = lab.Output({in, out}), db2 = lab.Output({out});
        Tensor x = lab.Make({n, in}, dense), wt = lab.Make({in, out}, w);
        RequireOk(lab.backend().Dense(x, wt, lab.Make({out}, b), y2));
        RequireOk(lab.backend().DenseBackward(x, wt, lab.Make({n, out}, dy), {}, dw2, db2));
        CHECK(Distance(lab.Read(y), lab.Read(y2)) < 1e-5);
        CHECK(Distance(lab.Read(dw), lab.Read(dw2)) < 1e-5);
        return std::vector<Values>{lab.Read(y), lab.Read(dw), lab.Read(db)};
      });
    }
  }
}

TEST_CASE("products refuse shapes that do not fit, with both shapes in the message", "[kernels]") {
  for (const NamedBackend& named : BackendsUnderTest()) {
    auto backend = named.make();
    Lab lab(*backend);
    absl::Status status =
        backend->Dense(lab.Output({32, 784}), lab.Output({512, 10}), lab.Output({10}), lab.Output({32, 10}));
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(status.message() == "[dense] x is [32,784] but w is [512,10]");
    CHECK(backend->Dense(lab.Output({2, 3}), lab.Output({3, 4}), lab.Output({5}), lab.Output({2, 4})).code() ==
          absl::StatusCode::kInvalidArgument);
    CHECK(backend->Dense(lab.Output({2, 3}), lab.Output({3, 4}), {}, lab.Output({2, 5})).code() ==
          absl::StatusCode::kInvalidArgument);
    const std::vector<std::int64_t> offsets = {0, 2};
    const std::vector<std::int32_t> descending = {4, 1}, beyond = {1, 9};
    const std::vector<float> values = {1, 1};
    for (const auto& columns : {descending, beyond}) {
      CHECK(backend->SparseDense({1, 5, offsets, columns, values}, lab.Output({5, 2}), {}, lab.Output({1, 2})).code() ==
            absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_CASE("the cpu backend refuses float64 and thread counts outside 1 to 256", "[kernels]") {
  auto cpu = *MakeCpuBackend({.threads = 1});
  double data[4] = {};
  Tensor wide{data, {2, 2}, DType::kFloat64};
  absl::Status status = cpu->Add(wide, wide, wide);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message()).find("float64") != std::string::npos);
  for (int threads : {0, -1, 257}) {
    CHECK(MakeCpuBackend({.threads = threads}).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a fingerprint tells apart backends and thread counts", "[kernels]") {
  const std::string one = (*MakeCpuBackend({.threads = 1}))->Fingerprint();
  CHECK(one == (*MakeCpuBackend({.threads = 1}))->Fingerprint());
  CHECK(one != (*MakeCpuBackend({.threads = 2}))->Fingerprint());
  CHECK(one != MakeReferenceBackend(DType::kFloat32)->Fingerprint());
  CHECK(one.find("oneDNN") != std::string::npos);
}

}  // namespace
}  // namespace evenkeel::testing
