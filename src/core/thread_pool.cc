#include "evenkeel/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "evenkeel/core/status.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace evenkeel {
namespace {

// About 20 us: as long as a wake-up from sleep takes.
constexpr int kSpins = 400;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

// One loop at a time. The caller writes the loop's fields and raises `round`; each thread runs its own chunk and counts
// down `running`. Both sides spin for a moment, then sleep.
struct ThreadPool::State {
  using Body = std::function<void(std::int64_t, std::int64_t)>;

  explicit State(int thread_count) : threads(thread_count), spins(AvailableCores() > 1 ? kSpins : 0) {}

  // Constant after construction.
  const int threads;
  const int spins;  // On one core spinning only delays whom it waits for.
  std::vector<std::thread> workers;

  std::mutex caller_mutex;  // held through one ParallelFor

  // Written by the caller before it raises `round`, read by the workers afterwards.
  const Body* body = nullptr;
  std::int64_t count = 0;
  std::int64_t chunk = 0;
  int chunks = 0;

  std::atomic<std::uint64_t> round{0};
  std::atomic<int> running{0};
  std::atomic<bool> stopping{false};
  std::mutex sleep_mutex;  // guards no data: it closes the gap between a check and a sleep
  std::condition_variable round_begins;
  std::condition_variable round_ends;

  void RunChunk(int index) const {
    std::int64_t begin = index * chunk;
    std::int64_t end = std::min(begin + chunk, count);
    (*body)(begin, end);
  }

  void Work(int index) {
    std::uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < spins && round.load(std::memory_order_acquire) == seen; ++i) Pause();
      if (round.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(sleep_mutex);
        round_begins.wait(lock, [&] { return round.load(std::memory_order_acquire) != seen; });
      }
      ++seen;
      if (stopping.load(std::memory_order_acquire)) return;
      if (index < chunks) RunChunk(index);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard<std::mutex> lock(sleep_mutex);
        round_ends.notify_one();
      }
    }
  }

  void Begin() {
    {
      std::lock_guard<std::mutex> lock(sleep_mutex);
      round.fetch_add(1, std::memory_order_acq_rel);
    }
    round_begins.notify_all();
  }

  void WaitForEnd() {
    for (int i = 0; i < spins && running.load(std::memory_order_acquire) != 0; ++i) Pause();
    if (running.load(std::memory_order_acquire) == 0) return;
    std::unique_lock<std::mutex> lock(sleep_mutex);
    round_ends.wait(lock, [&] { return running.load(std::memory_order_acquire) == 0; });
  }
};

ThreadPool::ThreadPool(int threads) {
  EK_CHECK(threads >= 1 && threads <= 256);
  state_ = std::make_unique<State>(threads);
  state_->workers.reserve(static_cast<std::size_t>(threads - 1));
  for (int index = 1; index < threads; ++index) {
    state_->workers.emplace_back([state = state_.get(), index] { state->Work(index); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true, std::memory_order_release);
  state_->Begin();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const { return state_->threads; }

void ThreadPool::ParallelFor(std::int64_t count, std::int64_t grain,
                             const std::function<void(std::int64_t, std::int64_t)>& body) {
  EK_CHECK(grain >= 1);
  if (count <= 0) return;
  const std::int64_t grains = (count + grain - 1) / grain;
  const std::int64_t grains_per_chunk = (grains + state_->threads - 1) / state_->threads;
  const std::int64_t chunk = grains_per_chunk * grain;
  const auto chunks = static_cast<int>((count + chunk - 1) / chunk);
  if (chunks == 1) {
    body(0, count);
    return;
  }
  std::lock_guard<std::mutex> caller(state_->caller_mutex);
  state_->body = &body;
  state_->count = count;
  state_->chunk = chunk;
  state_->chunks = chunks;
  state_->running.store(state_->threads - 1, std::memory_order_release);
  state_->Begin();
  state_->RunChunk(0);
  state_->WaitForEnd();
}

}  // namespace evenkeel
