#include "transport/shm/watcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "evenkeel/core/status.h"

namespace evenkeel::shm {

Watcher::Watcher() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  EK_CHECK(epoll_.get() >= 0 && wake_.get() >= 0);
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = 0}};
  EK_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0);
  MutexLock lock(mutex_);
  std::thread thread([this] { Run(); });
  thread_ = thread.get_id();
  thread.detach();
}

Watcher& Watcher::Of() {
  static Watcher* const watcher = new Watcher;
  return *watcher;
}

Watcher::Key Watcher::Add(int socket, bool reading, TimePoint deadline, Callback callback) {
  Key key = 0;
  {
    MutexLock lock(mutex_);
    key = next_++;
    watched_[key] = Watched{socket, deadline, std::move(callback)};
  }
  epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = key}};
  if (reading) event.events |= EPOLLIN;
  // A socket that was watched before is still known there, at rest.
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event) != 0) {
    EK_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0);
  }
  if (deadline != kNever) (void)eventfd_write(wake_.get(), 1);
  return key;
}

void Watcher::Remove(Key key) {
  if (key == 0) return;
  Watched dropped;
  MutexLock lock(mutex_);
  if (auto found = watched_.find(key); found != watched_.end()) {
    dropped = std::move(found->second);
    watched_.erase(found);
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, dropped.socket, nullptr);
  }
  while (calling_ == key && std::this_thread::get_id() != thread_) called_.Wait(mutex_);
}

void Watcher::Call(Key key, bool in_time) {
  Callback callback;
  {
    MutexLock lock(mutex_);
    auto found = watched_.find(key);
    if (found == watched_.end()) return;
    callback = std::move(found->second.callback);
    watched_.erase(found);
    calling_ = key;
  }
  callback(in_time);
  callback = nullptr;
  MutexLock lock(mutex_);
  calling_ = 0;
  called_.NotifyAll();
}

TimePoint Watcher::NextDeadline() const {
  MutexLock lock(mutex_);
  TimePoint next = kNever;
  for (const auto& [key, watched] : watched_) next = std::min(next, watched.deadline);
  return next;
}

void Watcher::Run() {
  for (;;) {
    int timeout_ms = -1;
    if (const TimePoint next = NextDeadline(); next != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::Real().Now()).count();
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
    }
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    std::vector<Key> late;
    {
      MutexLock lock(mutex_);
      const TimePoint now = Clock::Real().Now();
      for (const auto& [key, watched] : watched_) {
        if (watched.deadline <= now) late.push_back(key);
      }
    }
    for (int i = 0; i < count; ++i) {
      const Key key = events[static_cast<std::size_t>(i)].data.u64;
      if (key != 0) {
        Call(key, true);
        continue;
      }
      eventfd_t ignored = 0;
      (void)eventfd_read(wake_.get(), &ignored);
    }
    for (Key key : late) Call(key, false);
  }
}

}  // namespace evenkeel::shm
