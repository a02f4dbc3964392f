#include "evenkeel/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

using Chunk = std::pair<std::int64_t, std::int64_t>;

std::vector<Chunk> ChunksOf(ThreadPool& pool, std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::vector<Chunk> chunks;
  pool.ParallelFor(count, grain, [&](std::int64_t begin, std::int64_t end) {
    std::lock_guard<std::mutex> lock(mutex);
    chunks.emplace_back(begin, end);
  });
  std::sort(chunks.begin(), chunks.end());
  return chunks;
}

TEST_CASE("a loop is covered once, in chunks of whole grains", "[core][thread_pool]") {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (std::int64_t count : {0, 1, 2, 7, 64, 1000, 1001}) {
      for (std::int64_t grain : {1, 3, 16, 5000}) {
        std::vector<Chunk> chunks = ChunksOf(pool, count, grain);
        REQUIRE(chunks.size() <= static_cast<std::size_t>(threads));
        std::int64_t covered = 0;
        for (const Chunk& chunk : chunks) {
          REQUIRE(chunk.first == covered);
          REQUIRE(chunk.second > chunk.first);
          REQUIRE((chunk.second == count || (chunk.second - chunk.first) % grain == 0));
          covered = chunk.second;
        }
        REQUIRE(covered == count);
        REQUIRE(chunks == ChunksOf(pool, count, grain));
      }
    }
  }
}

TEST_CASE("all threads take part", "[core][thread_pool]") {
  ThreadPool pool(3);
  // Each chunk waits for the others, so that one thread alone would never end.
  std::atomic<int> here{0};
  pool.ParallelFor(3, 1, [&](std::int64_t, std::int64_t) {
    here.fetch_add(1);
    while (here.load() < 3) std::this_thread::yield();
  });
  CHECK(here.load() == 3);
}

TEST_CASE("many short loops after one another lose nothing", "[core][thread_pool]") {
  ThreadPool pool(4);
  std::vector<std::int64_t> sums(4);
  for (int round = 0; round < 5000; ++round) {
    pool.ParallelFor(4, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sums[static_cast<std::size_t>(i)] += i + 1;
    });
  }
  CHECK(sums == std::vector<std::int64_t>{5000, 10000, 15000, 20000});
}

TEST_CASE("callers at the same time wait for one another", "[core][thread_pool]") {
  ThreadPool pool(2);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        pool.ParallelFor(10, 1, [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total.load() == 4 * 200 * 10);
}

}  // namespace
}  // namespace evenkeel
