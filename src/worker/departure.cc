#include "worker/departure.h"

#include <utility>

namespace evenkeel {

Departure::Departure(const Clock& clock, std::function<void()> announce, std::function<void()> give_back)
    : clock_(clock), announce_(std::move(announce)), give_back_(std::move(give_back)), thread_([this] { Run(); }) {}

Departure::~Departure() {
  {
    MutexLock lock(mutex_);
    done_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void Departure::Begin(TimePoint give_back_at) {
  MutexLock lock(mutex_);
  if (std::exchange(begun_, true)) return;
  announce_due_ = true;
  give_back_at_ = give_back_at;
  changed_.NotifyAll();
}

void Departure::AnnounceAgain() {
  MutexLock lock(mutex_);
  if (!begun_) return;
  announce_due_ = true;
  changed_.NotifyAll();
}

void Departure::Run() {
  for (;;) {
    bool over = false;
    {
      MutexLock lock(mutex_);
      while (!done_ && !announce_due_ && clock_.Now() < give_back_at_) changed_.WaitUntil(mutex_, give_back_at_);
      if (done_) return;
      over = clock_.Now() >= give_back_at_;
      announce_due_ = false;
    }
    if (over) return give_back_();
    announce_();
  }
}

}  // namespace evenkeel
