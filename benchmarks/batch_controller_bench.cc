// What a decision of the batch controller costs: the split alone, a Plan that decides, a Plan that keeps, and learning
// from a step of each worker. One iteration is one step of a cluster of `range` workers.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "chief/batch_controller.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

struct Machines {
  explicit Machines(std::int64_t n, double noise_in) : noise(noise_in), rng(7) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double per_sample = 1e-3 * std::exp(rng.NextDouble() * std::log(50.0));
      lines.push_back({32 * per_sample * rng.NextDouble(), per_sample});
      controller.AddWorker(Incarnation(static_cast<std::uint64_t>(i) + 1), "worker-" + std::to_string(i));
    }
    total = 128 * n;
  }

  void Observe(const std::vector<BatchShare>& shares) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double seconds = lines[i].At(static_cast<double>(shares[i].batch));
      controller.Observe(shares[i].worker, shares[i].batch, seconds * std::exp(noise * rng.NextNormal()));
    }
  }

  double noise;
  Rng rng;
  std::vector<StepTimeLine> lines;
  std::int64_t total = 0;
  BatchController controller{{}};
};

void Split(benchmark::State& state) {
  const Machines machines(state.range(0), 0);
  const std::vector<ShareRange> ranges(machines.lines.size(), ShareRange{16, machines.total});
  for (auto _ : state) benchmark::DoNotOptimize(MinMaxSplit(machines.total, machines.lines, ranges));
}

// A total that differs each time makes every Plan decide.
void Decide(benchmark::State& state) {
  Machines machines(state.range(0), 0.1);
  for (int step = 0; step < 20; ++step) machines.Observe(*machines.controller.Plan(machines.total));
  std::int64_t more = 0;
  for (auto _ : state) benchmark::DoNotOptimize(machines.controller.Plan(machines.total + (more ^= 1)));
}

void Keep(benchmark::State& state) {
  Machines machines(state.range(0), 0.1);
  for (int step = 0; step < 300; ++step) machines.Observe(*machines.controller.Plan(machines.total));
  for (auto _ : state) benchmark::DoNotOptimize(machines.controller.Plan(machines.total));
}

void Learn(benchmark::State& state) {
  Machines machines(state.range(0), 0.1);
  const std::vector<BatchShare> shares = *machines.controller.Plan(machines.total);
  for (auto _ : state) machines.Observe(shares);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(Split)->RangeMultiplier(10)->Range(10, 10000)->Unit(benchmark::kMicrosecond);
BENCHMARK(Decide)->RangeMultiplier(10)->Range(10, 10000)->Unit(benchmark::kMicrosecond);
BENCHMARK(Keep)->RangeMultiplier(10)->Range(10, 10000)->Unit(benchmark::kMicrosecond);
BENCHMARK(Learn)->RangeMultiplier(10)->Range(10, 10000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace evenkeel

BENCHMARK_MAIN();
