// Pooling in plain loops. The workspace of max pooling holds the winner's place in its window, an int32 per output.
// The first of equal values wins; a NaN wins over all, so that it is seen further on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "evenkeel/kernels/backend.h"
#include "kernels/checks.h"

namespace evenkeel::kernels::reference {

// Calls visit(y index, tap, x index) for every element that each window sees, taps ascending.
template <class Visit>
void ForEachTap(const Pool2dSpec& spec, const WindowDims& d, const Visit& visit) {
  for (std::int64_t n = 0; n < d.n; ++n) {
    for (std::int64_t oy = 0; oy < d.oh; ++oy) {
      for (std::int64_t ox = 0; ox < d.ow; ++ox) {
        for (std::int64_t ky = 0; ky < d.kernel_h; ++ky) {
          const std::int64_t iy = oy * spec.stride_h + ky - spec.pad_top;
          if (iy < 0 || iy >= d.h) continue;
          for (std::int64_t kx = 0; kx < d.kernel_w; ++kx) {
            const std::int64_t ix = ox * spec.stride_w + kx - spec.pad_left;
            if (ix < 0 || ix >= d.w) continue;
            for (std::int64_t c = 0; c < d.c; ++c) {
              visit(((n * d.oh + oy) * d.ow + ox) * d.c + c, static_cast<std::int32_t>(ky * d.kernel_w + kx),
                    ((n * d.h + iy) * d.w + ix) * d.c + c);
            }
          }
        }
      }
    }
  }
}

// How many elements the window of output row or column `o` sees along one axis.
inline std::int64_t Seen(std::int64_t o, std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  return std::min(in, o * stride - pad + kernel) - std::max<std::int64_t>(0, o * stride - pad);
}

template <class T>
T WindowSize(const Pool2dSpec& spec, const WindowDims& d, std::int64_t y_index) {
  const std::int64_t pixel = y_index / d.c;
  return static_cast<T>(Seen(pixel / d.ow % d.oh, d.h, d.kernel_h, spec.stride_h, spec.pad_top) *
                        Seen(pixel % d.ow, d.w, d.kernel_w, spec.stride_w, spec.pad_left));
}

template <class T>
void Pool2d(const Pool2dSpec& spec, const WindowDims& d, const T* x, T* y, std::int32_t* winners) {
  const std::int64_t outputs = d.n * d.oh * d.ow * d.c;
  std::fill(y, y + outputs, T{0});
  if (spec.kind == Pool2dSpec::Kind::kAverage) {
    ForEachTap(spec, d, [&](std::int64_t yi, std::int32_t, std::int64_t xi) { y[yi] += x[xi]; });
    for (std::int64_t i = 0; i < outputs; ++i) y[i] /= WindowSize<T>(spec, d, i);
    return;
  }
  std::fill(winners, winners + outputs, -1);
  ForEachTap(spec, d, [&](std::int64_t yi, std::int32_t tap, std::int64_t xi) {
    if (winners[yi] >= 0 && !(x[xi] > y[yi]) && !std::isnan(x[xi])) return;
    y[yi] = x[xi];
    winners[yi] = tap;
  });
}

template <class T>
void Pool2dBackward(const Pool2dSpec& spec, const WindowDims& d, const T* dy, const std::int32_t* winners, T* dx) {
  std::fill(dx, dx + d.n * d.h * d.w * d.c, T{0});
  ForEachTap(spec, d, [&](std::int64_t yi, std::int32_t tap, std::int64_t xi) {
    if (spec.kind == Pool2dSpec::Kind::kAverage) {
      dx[xi] += dy[yi] / WindowSize<T>(spec, d, yi);
    } else if (winners[yi] == tap) {
      dx[xi] += dy[yi];
    }
  });
}

template <class T>
void GlobalAveragePool(const WindowDims& d, const T* x, T* y) {
  for (std::int64_t n = 0; n < d.n; ++n) {
    for (std::int64_t c = 0; c < d.c; ++c) {
      double sum = 0;
      for (std::int64_t p = 0; p < d.h * d.w; ++p) sum += x[(n * d.h * d.w + p) * d.c + c];
      y[n * d.c + c] = static_cast<T>(sum / static_cast<double>(d.h * d.w));
    }
  }
}

template <class T>
void GlobalAveragePoolBackward(const WindowDims& d, const T* dy, T* dx) {
  for (std::int64_t i = 0; i < d.n * d.h * d.w * d.c; ++i) {
    dx[i] = dy[i / (d.h * d.w * d.c) * d.c + i % d.c] / static_cast<T>(d.h * d.w);
  }
}

}  // namespace evenkeel::kernels::reference
