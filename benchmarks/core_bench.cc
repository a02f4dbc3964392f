// What the hot path takes from core: checksums, random numbers, split loops, arenas.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "core/crc32c.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/thread_pool.h"

namespace evenkeel {
namespace {

void Crc32cOfBlock(benchmark::State& state) {
  std::vector<std::byte> block(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(Crc32c(block));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Crc32cOfBlock)->Arg(64)->Arg(1 << 20);

void Crc32cByTable(benchmark::State& state) {
  std::vector<std::byte> block(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(internal::Crc32cTable(block, 0));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Crc32cByTable)->Arg(1 << 20);

void Sha256OfBlock(benchmark::State& state) {
  std::string block(static_cast<std::size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(Sha256Hex(block));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Sha256OfBlock)->Arg(1 << 20);

void RandomU32(benchmark::State& state) {
  Rng rng(1);
  for (auto _ : state) benchmark::DoNotOptimize(rng.NextU32());
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(RandomU32);

// An empty loop: the price of splitting.
void SplitLoop(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(1024, 1, [](std::int64_t begin, std::int64_t end) { benchmark::DoNotOptimize(begin + end); });
  }
}
BENCHMARK(SplitLoop)->Arg(1)->Arg(2)->UseRealTime();

void AllocateArena(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Arena::Allocate(static_cast<std::size_t>(state.range(0)))->data());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(AllocateArena)->Arg(64 << 20);

}  // namespace
}  // namespace evenkeel

BENCHMARK_MAIN();
