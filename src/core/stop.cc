#include "evenkeel/core/stop.h"

#include <utility>

namespace evenkeel {

void StopSource::Request(const std::string& reason) {
  // Called under the lock, so that Unsubscribe's promise holds; the functions only wake somebody up.
  MutexLock lock(mutex_);
  if (requested_) return;
  requested_ = true;
  reason_ = reason;
  for (const auto& [number, function] : functions_) function();
}

bool StopSource::requested() const {
  MutexLock lock(mutex_);
  return requested_;
}

std::string StopSource::reason() const {
  MutexLock lock(mutex_);
  return reason_;
}

int StopSource::Subscribe(std::function<void()> function) {
  MutexLock lock(mutex_);
  if (requested_) function();
  functions_.emplace(++next_, std::move(function));
  return next_;
}

void StopSource::Unsubscribe(int subscription) {
  MutexLock lock(mutex_);
  functions_.erase(subscription);
}

}  // namespace evenkeel
