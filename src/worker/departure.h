// How a worker goes in good order: it tells the chief at once that it will leave, and gives back the update in progress
// where that is not decided in time.
//
// Threading: thread-safe; both functions are called on a thread of its own, one at a time, never under its lock.
#pragma once

#include <functional>
#include <thread>

#include "evenkeel/core/clock.h"
#include "evenkeel/core/mutex.h"

namespace evenkeel {

class Departure {
 public:
  // `announce` may run several times, `give_back` once, last.
  Departure(const Clock& clock, std::function<void()> announce, std::function<void()> give_back);
  ~Departure();  // waits for a call in progress
  Departure(const Departure&) = delete;
  Departure& operator=(const Departure&) = delete;

  // Announces, and gives back at `give_back_at` where this object still lives then. The first call's time stays.
  void Begin(TimePoint give_back_at);
  // Once begun: after a reconnect. Else nothing.
  void AnnounceAgain();

 private:
  void Run();

  const Clock& clock_;
  const std::function<void()> announce_, give_back_;
  Mutex mutex_;
  CondVar changed_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool announce_due_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint give_back_at_ ABSL_GUARDED_BY(mutex_) = kNever;
  std::thread thread_;
};

}  // namespace evenkeel
