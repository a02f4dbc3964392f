// Virtual time: what happens next, and to which process.
//
// Threading: none. Determinism: what is due at one moment happens in the order in which it was asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "evenkeel/core/clock.h"

namespace evenkeel::sim {

// A life of a process. What is due for a dead one never happens; for a stopped one, when it goes on.
class Process {
 public:
  explicit Process(std::string machine) : machine_(std::move(machine)) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // "worker:3"; two processes of one name may run on it.
  const std::string& machine() const { return machine_; }
  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  // Its timer has rung, or it may have something to do.
  virtual void OnTimer() = 0;

 private:
  friend class Scheduler;
  const std::string machine_;
  bool alive_ = true;
  bool paused_ = false;
  TimePoint wake_ = kNever;  // the earliest timer that is set
  std::deque<std::function<void()>> held_;
};

class Scheduler {
 public:
  TimePoint now() const { return now_; }
  std::int64_t events() const { return events_; }
  std::size_t most_queued() const { return most_queued_; }

  // `owner` may be null: the world itself. Owners live as long as the scheduler.
  void At(TimePoint when, Process* owner, std::function<void()> run) {
    queue_.push(Event{std::max(when, now_), ++asked_, owner, std::move(run)});
    most_queued_ = std::max(most_queued_, queue_.size());
  }
  // Has OnTimer called no later than `when`.
  void Wake(Process& process, TimePoint when) {
    if (when == kNever || process.wake_ <= when) return;
    process.wake_ = when;
    At(when, &process, [&process, when] {
      if (process.wake_ != when) return;  // an earlier one took its place
      process.wake_ = kNever;
      process.OnTimer();
    });
  }
  bool idle() const { return queue_.empty(); }
  // Lets the next thing happen. Requires !idle().
  void RunNext() {
    Event event = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    now_ = event.at;
    if (event.owner != nullptr && !event.owner->alive_) return;
    if (event.owner != nullptr && event.owner->paused_) {
      event.owner->held_.push_back(std::move(event.run));
      return;
    }
    ++events_;
    event.run();
  }

  void Kill(Process& process) {
    process.alive_ = false;
    process.held_.clear();
  }
  void Pause(Process& process) { process.paused_ = true; }
  void Continue(Process& process) {
    if (!std::exchange(process.paused_, false)) return;
    for (auto& run : std::exchange(process.held_, {})) At(now_, &process, std::move(run));
  }

 private:
  struct Event {
    TimePoint at;
    std::uint64_t asked = 0;
    Process* owner = nullptr;
    std::function<void()> run;
    bool operator<(const Event& other) const {  // the queue gives the greatest first
      return at != other.at ? at > other.at : asked > other.asked;
    }
  };
  TimePoint now_{std::chrono::seconds(1)};
  std::uint64_t asked_ = 0;
  std::int64_t events_ = 0;
  std::size_t most_queued_ = 0;
  std::priority_queue<Event> queue_;
};

}  // namespace evenkeel::sim
