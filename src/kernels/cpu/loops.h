// The vectorised loops of the CPU backend, compiled once per instruction set and chosen at run time.
//
// Threading: every function is pure over the range it is given; the caller splits ranges between threads. Sums have a
// fixed order within one instruction set, so equal calls give equal bits.
// Aliasing: elementwise functions allow their output to be one of their inputs; the others allow none.
#pragma once

#include <cstdint>

namespace evenkeel::kernels::cpu {

// Geometry of pooling; see Pool2dSpec. Images [n, h, w, c] to [n, oh, ow, c].
struct PoolGeometry {
  std::int64_t h, w, c, oh, ow;
  std::int64_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left;
};

struct Loops {
  const char* isa;

  void (*fill)(std::int64_t n, float value, float* y);
  void (*scale)(std::int64_t n, float factor, float* y);
  void (*add)(std::int64_t n, const float* a, const float* b, float* y);

  void (*relu)(std::int64_t n, const float* x, float* y);
  void (*gelu)(std::int64_t n, const float* x, float* y);
  void (*tanh)(std::int64_t n, const float* x, float* y);
  void (*sigmoid)(std::int64_t n, const float* x, float* y);
  void (*relu_backward)(std::int64_t n, const float* y, const float* dy, float* dx);
  void (*gelu_backward)(std::int64_t n, const float* x, const float* dy, float* dx);
  void (*tanh_backward)(std::int64_t n, const float* y, const float* dy, float* dx);
  void (*sigmoid_backward)(std::int64_t n, const float* y, const float* dy, float* dx);

  // One row: keeps element j where word j % 4 of Philox(key, 0, j / 4), as a unit float, is at least `rate`.
  void (*dropout)(std::int64_t n, std::uint64_t key, float rate, float scale, const float* x, float* y);

  // sums[c] = sum over rows of x[row * stride + c], for columns c.
  void (*column_sums)(std::int64_t rows, std::int64_t columns, std::int64_t stride, const float* x, float* sums);
  // y [columns] += factor * x [columns].
  void (*axpy)(std::int64_t columns, float factor, const float* x, float* y);

  // Max pooling of one image. The first of equal values wins, a NaN wins over all. Winners are taps in the window:
  // bytes where the window has at most 256 taps, else int32.
  void (*max_pool_bytes)(const PoolGeometry& g, const float* x, float* y, std::uint8_t* winners);
  void (*max_pool_words)(const PoolGeometry& g, const float* x, float* y, std::int32_t* winners);
  void (*max_pool_backward_bytes)(const PoolGeometry& g, const float* dy, const std::uint8_t* winners, float* dx);
  void (*max_pool_backward_words)(const PoolGeometry& g, const float* dy, const std::int32_t* winners, float* dx);

  void (*softmax)(std::int64_t rows, std::int64_t k, const float* x, float* y);
  // Losses of rows; gradient may be null. Class labels must be valid.
  void (*softmax_cross_entropy)(std::int64_t rows, std::int64_t k, double smoothing, const float* z,
                                const float* labels, float* loss, float* gradient);
  void (*sigmoid_cross_entropy)(std::int64_t rows, std::int64_t k, double smoothing, const float* z,
                                const float* labels, float* loss, float* gradient);
  void (*mse)(std::int64_t rows, std::int64_t k, const float* x, const float* labels, float* loss, float* gradient);
  void (*huber)(std::int64_t rows, std::int64_t k, float delta, const float* x, const float* labels, float* loss,
                float* gradient);
  void (*hinge)(std::int64_t rows, std::int64_t k, const float* scores, const float* labels, float* loss,
                float* gradient);

  std::int64_t (*count_non_finite)(std::int64_t n, const float* x);
};

namespace baseline {
extern const Loops kLoops;
}
namespace avx2 {
extern const Loops kLoops;
}
namespace avx512 {
extern const Loops kLoops;
}

// The best table that this processor runs.
const Loops& ChooseLoops();

}  // namespace evenkeel::kernels::cpu
