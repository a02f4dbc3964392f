// One thread of the process that waits on many sockets and calls back once for each: who wants to be called again says
// so again. It is never taken down: what outlives everything else needs no owner.
//
// Threading: Add and Remove are thread-safe; callbacks come one at a time, on the watcher's thread, and may call both.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/mutex.h"
#include "transport/shm/memory.h"

namespace evenkeel::shm {

class Watcher {
 public:
  using Key = std::uint64_t;
  // `in_time`: the socket has news; else the deadline has passed.
  using Callback = std::function<void(bool in_time)>;

  static Watcher& Of();  // the process's

  // Calls back once: when the socket has something to read or its other end is closed (`reading`), or when its other
  // end is closed. The socket stays open until the callback, or Remove.
  Key Add(int socket, bool reading, TimePoint deadline, Callback callback);
  // 0: nothing. No callback comes afterwards; waits for one that is running on the watcher's thread, unless this is
  // that thread.
  void Remove(Key key);

 private:
  struct Watched {
    int socket = -1;
    TimePoint deadline = kNever;
    Callback callback;
  };
  Watcher();
  [[noreturn]] void Run();
  void Call(Key key, bool in_time);
  TimePoint NextDeadline() const;

  Descriptor epoll_, wake_;
  mutable Mutex mutex_;
  CondVar called_;
  std::map<Key, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  Key next_ ABSL_GUARDED_BY(mutex_) = 1;
  Key calling_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread::id thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace evenkeel::shm
