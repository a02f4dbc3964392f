// A fixed set of threads for splitting one loop. The caller takes part, so a pool of 1 starts no thread.
//
// Threading: one ParallelFor at a time; concurrent callers wait for one another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace evenkeel {

class ThreadPool {
 public:
  // Requires 1 <= threads <= 256.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  int threads() const;
  // Calls body(begin, end) on disjoint chunks that cover [0, count), each a multiple of `grain` but the last; returns
  // when all are done. The cut depends only on count, grain and threads(). body must neither throw nor call ParallelFor
  // of this pool.
  void ParallelFor(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Cores that this process may use (affinity and cgroup quota), at least 1.
int AvailableCores();

}  // namespace evenkeel
