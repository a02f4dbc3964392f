#include "evenkeel/core/status.h"
#include "kernels/cpu/cpu_backend.h"

namespace evenkeel::kernels::cpu {
namespace {

using dnnl::memory;

struct CachedStep : CachedOperation {
  Step step;
};

memory::desc MatrixDesc(std::int64_t rows, std::int64_t columns, bool transposed) {
  return memory::desc({rows, columns}, memory::data_type::f32,
                      transposed ? memory::dims{1, rows} : memory::dims{columns, 1});
}

}  // namespace

// c [m, n] = a [m, k] b [k, n] + bias [n]; a transposed operand lies as its transpose. bias may be null.
absl::Status CpuBackend::Product(const float* a, bool a_transposed, const float* b, bool b_transposed,
                                 const float* bias, float* c, std::int64_t m, std::int64_t k, std::int64_t n) {
  const OneDnn::Key key = {
      static_cast<std::int64_t>(Operation::kProduct), a_transposed, b_transposed, bias != nullptr, m, k, n};
  auto& product = onednn_.Cached<CachedStep>(key, [&] {
    const memory::desc a_desc = MatrixDesc(m, k, a_transposed), b_desc = MatrixDesc(k, n, b_transposed),
                       c_desc = MatrixDesc(m, n, false), bias_desc = MatrixDesc(1, n, false);
    const dnnl::matmul::primitive_desc pd(bias != nullptr ? dnnl::matmul::desc(a_desc, b_desc, bias_desc, c_desc)
                                                          : dnnl::matmul::desc(a_desc, b_desc, c_desc),
                                          onednn_.attributes(), onednn_.engine());
    auto made = std::make_unique<CachedStep>();
    const dnnl::matmul primitive(pd);
    if (bias != nullptr) {
      made->step = Step(
          onednn_, primitive, pd.scratchpad_desc(),
          {{DNNL_ARG_SRC, a_desc}, {DNNL_ARG_WEIGHTS, b_desc}, {DNNL_ARG_DST, c_desc}, {DNNL_ARG_BIAS, bias_desc}});
    } else {
      made->step = Step(onednn_, primitive, pd.scratchpad_desc(),
                        {{DNNL_ARG_SRC, a_desc}, {DNNL_ARG_WEIGHTS, b_desc}, {DNNL_ARG_DST, c_desc}});
    }
    return made;
  });
  return bias != nullptr ? product.step.Run(onednn_, {a, b, c, bias}) : product.step.Run(onednn_, {a, b, c});
}

void CpuBackend::ColumnSums(std::int64_t rows, std::int64_t columns, const float* x, float* sums) const {
  const std::int64_t grain = std::max<std::int64_t>(64, 32768 / std::max<std::int64_t>(rows, 1));
  ParallelFor(columns, grain, 16, [&](std::int64_t begin, std::int64_t end) {
    loops_.column_sums(rows, end - begin, columns, x + begin, sums + begin);
  });
}

absl::Status CpuBackend::Dense(ConstTensor x, ConstTensor w, ConstTensor b, Tensor y) {
  EK_ASSIGN_OR_RETURN(DenseDims d, CheckDense(dtype(), x, w, b, y));
  if (d.n == 0) return absl::OkStatus();
  UseThreads();
  return Guarded("dense", [&] { return Product(In(x), false, In(w), false, In(b), Out(y), d.n, d.in, d.out); });
}

absl::Status CpuBackend::DenseBackward(ConstTensor x, ConstTensor w, ConstTensor dy, Tensor dx, Tensor dw, Tensor db) {
  EK_ASSIGN_OR_RETURN(DenseDims d, CheckDenseBackward(dtype(), x, w, dy, dx, dw, db));
  UseThreads();
  if (db.data != nullptr) ColumnSums(d.n, d.out, In(dy), Out(db));
  if (d.n == 0) {
    loops_.fill(dw.elements(), 0, Out(dw));
    return absl::OkStatus();
  }
  return Guarded("dense backward", [&]() -> absl::Status {
    if (dx.data != nullptr) {
      EK_RETURN_IF_ERROR(Product(In(dy), false, In(w), true, nullptr, Out(dx), d.n, d.out, d.in));
    }
    return Product(In(x), true, In(dy), false, nullptr, Out(dw), d.in, d.n, d.out);
  });
}

absl::Status CpuBackend::SparseDense(const CsrView& x, ConstTensor w, ConstTensor b, Tensor y) {
  EK_ASSIGN_OR_RETURN(DenseDims d, CheckSparseDense(dtype(), x, w, b, y));
  const std::int64_t work_per_row =
      d.out * (1 + static_cast<std::int64_t>(x.values.size()) / std::max<std::int64_t>(d.n, 1));
  ParallelFor(d.n, std::max<std::int64_t>(1, 16384 / work_per_row), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* to = Out(y) + row * d.out;
      if (d.out == 1) {
        float sum = b.data != nullptr ? *In(b) : 0;
        for (std::int64_t i = x.row_offsets[row]; i < x.row_offsets[row + 1]; ++i) {
          sum += x.values[i] * In(w)[x.columns[i]];
        }
        *to = sum;
        continue;
      }
      if (b.data != nullptr) {
        std::copy_n(In(b), d.out, to);
      } else {
        loops_.fill(d.out, 0, to);
      }
      for (std::int64_t i = x.row_offsets[row]; i < x.row_offsets[row + 1]; ++i) {
        loops_.axpy(d.out, x.values[i], In(w) + x.columns[i] * d.out, to);
      }
    }
  });
  return absl::OkStatus();
}

// The scatter stays on one thread: rows share columns, and the order of the sums must not vary.
absl::Status CpuBackend::SparseDenseBackward(const CsrView& x, ConstTensor dy, Tensor dw, Tensor db) {
  EK_ASSIGN_OR_RETURN(DenseDims d, CheckSparseDenseBackward(dtype(), x, dy, dw, db));
  EK_RETURN_IF_ERROR(Fill(0, dw));
  if (db.data != nullptr) ColumnSums(d.n, d.out, In(dy), Out(db));
  for (std::int64_t row = 0; row < d.n; ++row) {
    const float* from = In(dy) + row * d.out;
    for (std::int64_t i = x.row_offsets[row]; i < x.row_offsets[row + 1]; ++i) {
      float* to = Out(dw) + x.columns[i] * d.out;
      if (d.out == 1) {
        *to += x.values[i] * *from;
      } else {
        loops_.axpy(d.out, x.values[i], from, to);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace evenkeel::kernels::cpu
