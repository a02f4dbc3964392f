// The CPU backend on the shapes of the project's own models: batch 128, one thread. Products report FLOP/s.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "evenkeel/core/arena.h"
#include "evenkeel/core/random.h"
#include "evenkeel/kernels/backend.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kBatch = 128;

class Bench {
 public:
  explicit Bench(benchmark::State& state) : state_(state), backend_(*MakeCpuBackend({.threads = 1})) {}
  Backend& backend() { return *backend_; }

  Tensor Make(const Shape& shape) {
    buffers_.push_back(*backend_->Allocate(static_cast<std::size_t>(shape.elements()) * sizeof(float)));
    Tensor tensor{buffers_.back()->data(), shape, DType::kFloat32};
    for (float& value : tensor.as<float>()) value = rng_.NextFloat() - 0.5f;
    return tensor;
  }

  // Runs the operation once to build what the backend keeps, then times it.
  template <class Operation>
  void Time(const Operation& operation) {
    if (absl::Status status = operation(); !status.ok()) {
      return state_.SkipWithError(std::string(status.message()).c_str());
    }
    for (auto _ : state_) benchmark::DoNotOptimize(operation().ok());
  }

  void Flops(double each) {
    state_.counters["FLOP/s"] = benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
  }

 private:
  benchmark::State& state_;
  std::unique_ptr<Backend> backend_;
  Rng rng_{1};
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

struct ConvTensors {
  Conv2dSpec spec;
  Tensor x, w, b, y, dx, dw, db;
  double flops;

  // Arguments: image side, input channels, output channels, stride; a 3x3 kernel with padding 1.
  ConvTensors(Bench& bench, const benchmark::State& state) {
    const std::int64_t side = state.range(0), in = state.range(1), out = state.range(2), stride = state.range(3);
    spec = {.stride_h = stride, .stride_w = stride, .pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1};
    const std::int64_t output_side = WindowOutput(side, 3, stride, 2);
    const Shape image = {kBatch, side, side, in}, weights = {3, 3, in, out};
    x = bench.Make(image);
    dx = bench.Make(image);
    w = bench.Make(weights);
    dw = bench.Make(weights);
    b = bench.Make({out});
    db = bench.Make({out});
    y = bench.Make({kBatch, output_side, output_side, out});
    flops = 2.0 * static_cast<double>(y.elements() * 9 * in);
  }
};

// Weights change every step, so each call reorders them as training does.
void Conv2dForward(benchmark::State& state) {
  Bench bench(state);
  ConvTensors t(bench, state);
  bench.Time([&] {
    bench.backend().WeightsChanged();
    return bench.backend().Conv2d(t.spec, t.x, t.w, t.b, t.y);
  });
  bench.Flops(t.flops);
}

void Conv2dBackward(benchmark::State& state) {
  Bench bench(state);
  ConvTensors t(bench, state);
  bench.Time([&] {
    bench.backend().WeightsChanged();
    return bench.backend().Conv2dBackward(t.spec, t.x, t.w, t.y, t.dx, t.dw, t.db);
  });
  bench.Flops(2 * t.flops);
}

void ConvShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({28, 1, 32, 1})->Args({28, 32, 64, 1})->Args({14, 32, 64, 1});
  benchmark->Args({32, 3, 16, 1})->Args({32, 16, 16, 1})->Args({32, 16, 32, 2})->Args({8, 64, 64, 1});
}
BENCHMARK(Conv2dForward)->Apply(ConvShapes);
BENCHMARK(Conv2dBackward)->Apply(ConvShapes);

void DenseForwardBackward(benchmark::State& state) {
  Bench bench(state);
  const std::int64_t in = state.range(0), out = state.range(1);
  Tensor x = bench.Make({kBatch, in}), dx = bench.Make({kBatch, in}), w = bench.Make({in, out});
  Tensor dw = bench.Make({in, out}), b = bench.Make({out}), db = bench.Make({out}), y = bench.Make({kBatch, out});
  bench.Time([&] {
    absl::Status status = bench.backend().Dense(x, w, b, y);
    status.Update(bench.backend().DenseBackward(x, w, y, dx, dw, db));
    return status;
  });
  bench.Flops(6.0 * static_cast<double>(kBatch * in * out));
}
BENCHMARK(DenseForwardBackward)->Args({784, 512})->Args({512, 10})->Args({3136, 128})->Args({11, 64});

const Shape kImages = {kBatch, 28, 28, 64};

void MaxPoolForwardBackward(benchmark::State& state) {
  Bench bench(state);
  const Pool2dSpec spec;
  Tensor x = bench.Make(kImages), dx = bench.Make(kImages), y = bench.Make({kBatch, 14, 14, 64});
  auto workspace = *bench.backend().Allocate(*bench.backend().Pool2dWorkspaceBytes(spec, kImages));
  bench.Time([&] {
    absl::Status status = bench.backend().Pool2d(spec, x, y, workspace->data());
    status.Update(bench.backend().Pool2dBackward(spec, x, y, workspace->data(), dx));
    return status;
  });
}
BENCHMARK(MaxPoolForwardBackward);

void BatchNormForwardBackward(benchmark::State& state) {
  Bench bench(state);
  Tensor x = bench.Make(kImages), y = bench.Make(kImages), dx = bench.Make(kImages);
  Tensor gamma = bench.Make({64}), beta = bench.Make({64}), mean = bench.Make({64}), variance = bench.Make({64});
  Tensor dgamma = bench.Make({64}), dbeta = bench.Make({64});
  bench.Time([&] {
    absl::Status status = bench.backend().BatchNormTrain(1e-5, x, gamma, beta, y, mean, variance, nullptr);
    status.Update(bench.backend().BatchNormBackward(1e-5, x, gamma, mean, variance, y, dx, dgamma, dbeta, nullptr));
    return status;
  });
}
BENCHMARK(BatchNormForwardBackward);

void ActivationForward(benchmark::State& state) {
  Bench bench(state);
  Tensor x = bench.Make(kImages), y = bench.Make(kImages);
  bench.Time([&] { return bench.backend().Activation(static_cast<ActivationKind>(state.range(0)), x, y); });
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(x.bytes() + y.bytes()));
}
BENCHMARK(ActivationForward)->DenseRange(0, 3);

void DropoutForward(benchmark::State& state) {
  Bench bench(state);
  Tensor x = bench.Make(kImages), y = bench.Make(kImages);
  const std::vector<std::uint64_t> keys(kBatch, 7);
  bench.Time([&] { return bench.backend().Dropout(0.5, keys, x, y); });
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(x.bytes() + y.bytes()));
}
BENCHMARK(DropoutForward);

void SoftmaxCrossEntropy(benchmark::State& state) {
  Bench bench(state);
  Tensor x = bench.Make({kBatch, 10}), labels = bench.Make({kBatch}), loss = bench.Make({kBatch});
  Tensor gradient = bench.Make({kBatch, 10});
  (void)bench.backend().Fill(3, labels);
  bench.Time([&] { return bench.backend().Loss({}, x, labels, loss, gradient); });
}
BENCHMARK(SoftmaxCrossEntropy);

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
  evenkeel::TuneAllocator();
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("backend", (*evenkeel::MakeCpuBackend({.threads = 1}))->Fingerprint());
  benchmark::RunSpecifiedBenchmarks();
}
