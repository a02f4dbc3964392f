// Tells running parts to end in good order. One source a process; SIGTERM's handler thread requests it.
//
// Threading: thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "evenkeel/core/mutex.h"

namespace evenkeel {

class StopSource {
 public:
  // The first reason stays. Runs the subscribed functions, in the calling thread.
  void Request(const std::string& reason);
  bool requested() const;
  std::string reason() const;
  // Calls `function` once stop is requested, at once where it already is. Returns a number for Unsubscribe.
  int Subscribe(std::function<void()> function);
  // The function does not run any more once this returns.
  void Unsubscribe(int subscription);

 private:
  mutable Mutex mutex_;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, std::function<void()>> functions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace evenkeel
