// The streams of a transport or a listener while they are open. Thread-safe.
#pragma once

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/mutex.h"

namespace evenkeel {

template <class S>
class OpenStreams {
 public:
  // False: closed to new ones.
  bool Add(std::shared_ptr<S> stream) {
    MutexLock lock(mutex_);
    if (sealed_) return false;
    streams_.insert(std::move(stream));
    return true;
  }
  void Remove(const std::shared_ptr<S>& stream) {
    MutexLock lock(mutex_);
    streams_.erase(stream);
    changed_.NotifyAll();
  }
  // From now on Add refuses.
  void Seal() {
    MutexLock lock(mutex_);
    sealed_ = true;
  }
  std::vector<std::shared_ptr<S>> Snapshot() const {
    MutexLock lock(mutex_);
    return {streams_.begin(), streams_.end()};
  }
  // Without allocation once `streams` has held as many.
  void CopyTo(std::vector<std::shared_ptr<S>>& streams) const {
    MutexLock lock(mutex_);
    streams.assign(streams_.begin(), streams_.end());
  }
  // False: the deadline passed first.
  bool WaitUntilEmpty(TimePoint deadline = kNever) const {
    MutexLock lock(mutex_);
    while (!streams_.empty()) {
      if (!changed_.WaitUntil(mutex_, deadline)) return streams_.empty();
    }
    return true;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool sealed_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<S>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace evenkeel
