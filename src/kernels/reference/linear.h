// Dense and sparse products and convolution in plain loops. Sums are kept in double.
#pragma once

#include <algorithm>
#include <cstdint>

#include "evenkeel/kernels/backend.h"
#include "kernels/checks.h"

namespace evenkeel::kernels::reference {

template <class T>
void Dense(DenseDims d, const T* x, const T* w, const T* b, T* y) {
  for (std::int64_t n = 0; n < d.n; ++n) {
    for (std::int64_t o = 0; o < d.out; ++o) {
      double sum = b != nullptr ? b[o] : 0;
      for (std::int64_t i = 0; i < d.in; ++i) sum += static_cast<double>(x[n * d.in + i]) * w[i * d.out + o];
      y[n * d.out + o] = static_cast<T>(sum);
    }
  }
}

// db [columns] = sum over the rows of dy [rows, columns].
template <class T>
void ColumnSums(std::int64_t rows, std::int64_t columns, const T* dy, T* db) {
  for (std::int64_t c = 0; c < columns; ++c) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += dy[r * columns + c];
    db[c] = static_cast<T>(sum);
  }
}

template <class T>
void DenseBackward(DenseDims d, const T* x, const T* w, const T* dy, T* dx, T* dw, T* db) {
  if (dx != nullptr) {
    for (std::int64_t n = 0; n < d.n; ++n) {
      for (std::int64_t i = 0; i < d.in; ++i) {
        double sum = 0;
        for (std::int64_t o = 0; o < d.out; ++o) sum += static_cast<double>(dy[n * d.out + o]) * w[i * d.out + o];
        dx[n * d.in + i] = static_cast<T>(sum);
      }
    }
  }
  for (std::int64_t i = 0; i < d.in; ++i) {
    for (std::int64_t o = 0; o < d.out; ++o) {
      double sum = 0;
      for (std::int64_t n = 0; n < d.n; ++n) sum += static_cast<double>(x[n * d.in + i]) * dy[n * d.out + o];
      dw[i * d.out + o] = static_cast<T>(sum);
    }
  }
  if (db != nullptr) ColumnSums(d.n, d.out, dy, db);
}

template <class T>
void SparseDense(DenseDims d, const CsrView& x, const T* w, const T* b, T* y) {
  for (std::int64_t n = 0; n < d.n; ++n) {
    for (std::int64_t o = 0; o < d.out; ++o) {
      double sum = b != nullptr ? b[o] : 0;
      for (std::int64_t i = x.row_offsets[n]; i < x.row_offsets[n + 1]; ++i) {
        sum += static_cast<double>(x.values[i]) * w[x.columns[i] * d.out + o];
      }
      y[n * d.out + o] = static_cast<T>(sum);
    }
  }
}

template <class T>
void SparseDenseBackward(DenseDims d, const CsrView& x, const T* dy, T* dw, T* db) {
  std::fill(dw, dw + d.in * d.out, T{0});
  for (std::int64_t n = 0; n < d.n; ++n) {
    for (std::int64_t i = x.row_offsets[n]; i < x.row_offsets[n + 1]; ++i) {
      for (std::int64_t o = 0; o < d.out; ++o) {
        dw[x.columns[i] * d.out + o] += static_cast<T>(x.values[i]) * dy[n * d.out + o];
      }
    }
  }
  if (db != nullptr) ColumnSums(d.n, d.out, dy, db);
}

// Calls visit(x index, w index, y index) for every product that the convolution sums.
template <class Visit>
void ForEachConvProduct(const Conv2dSpec& spec, const WindowDims& d, const Visit& visit) {
  const std::int64_t in_group = d.c / spec.groups;
  const std::int64_t out_group = d.out / spec.groups;
  for (std::int64_t n = 0; n < d.n; ++n) {
    for (std::int64_t oy = 0; oy < d.oh; ++oy) {
      for (std::int64_t ox = 0; ox < d.ow; ++ox) {
        for (std::int64_t ky = 0; ky < d.kernel_h; ++ky) {
          const std::int64_t iy = oy * spec.stride_h + ky - spec.pad_top;
          if (iy < 0 || iy >= d.h) continue;
          for (std::int64_t kx = 0; kx < d.kernel_w; ++kx) {
            const std::int64_t ix = ox * spec.stride_w + kx - spec.pad_left;
            if (ix < 0 || ix >= d.w) continue;
            for (std::int64_t i = 0; i < in_group; ++i) {
              for (std::int64_t o = 0; o < d.out; ++o) {
                const std::int64_t channel = o / out_group * in_group + i;
                visit(((n * d.h + iy) * d.w + ix) * d.c + channel, ((ky * d.kernel_w + kx) * in_group + i) * d.out + o,
                      ((n * d.oh + oy) * d.ow + ox) * d.out + o);
              }
            }
          }
        }
      }
    }
  }
}

template <class T>
void Conv2d(const Conv2dSpec& spec, const WindowDims& d, const T* x, const T* w, const T* b, T* y) {
  const std::int64_t outputs = d.n * d.oh * d.ow * d.out;
  for (std::int64_t i = 0; i < outputs; ++i) y[i] = b != nullptr ? b[i % d.out] : T{0};
  ForEachConvProduct(spec, d, [&](std::int64_t xi, std::int64_t wi, std::int64_t yi) { y[yi] += x[xi] * w[wi]; });
}

template <class T>
void Conv2dBackward(const Conv2dSpec& spec, const WindowDims& d, const T* x, const T* w, const T* dy, T* dx, T* dw,
                    T* db) {
  std::fill(dw, dw + d.kernel_h * d.kernel_w * (d.c / spec.groups) * d.out, T{0});
  if (dx != nullptr) std::fill(dx, dx + d.n * d.h * d.w * d.c, T{0});
  ForEachConvProduct(spec, d, [&](std::int64_t xi, std::int64_t wi, std::int64_t yi) {
    dw[wi] += x[xi] * dy[yi];
    if (dx != nullptr) dx[xi] += w[wi] * dy[yi];
  });
  if (db != nullptr) ColumnSums(d.n * d.oh * d.ow, d.out, dy, db);
}

}  // namespace evenkeel::kernels::reference
