#include "transport/tcp/crew.h"

#include "transport/tcp/tcp_stream.h"

namespace evenkeel {

void Crew::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Crew::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool Crew::Add(std::shared_ptr<TcpStream> stream) {
  MutexLock lock(mutex_);
  if (sealed_) return false;
  streams_.insert(std::move(stream));
  return true;
}

void Crew::Remove(const std::shared_ptr<TcpStream>& stream, std::thread thread) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
  if (thread.joinable()) finished_.push_back(std::move(thread));
  changed_.NotifyAll();
}

void Crew::CutAt(TimePoint deadline, std::weak_ptr<TcpStream> stream, absl::Status reason) {
  MutexLock lock(mutex_);
  cuts_.emplace(deadline, Cut{std::move(stream), std::move(reason)});
  changed_.NotifyAll();
}

void Crew::Seal() {
  MutexLock lock(mutex_);
  sealed_ = true;
}

std::vector<std::shared_ptr<TcpStream>> Crew::Snapshot() const {
  MutexLock lock(mutex_);
  return {streams_.begin(), streams_.end()};
}

bool Crew::WaitUntilEmpty(TimePoint deadline) const {
  MutexLock lock(mutex_);
  while (!streams_.empty()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return streams_.empty();
  }
  return true;
}

void Crew::Run() {
  bool stopping = false;
  while (!stopping) {
    std::vector<std::thread> finished;
    std::vector<Cut> due;
    {
      MutexLock lock(mutex_);
      while (finished_.empty() && !stopping_) {
        TimePoint next = cuts_.empty() ? kNever : cuts_.begin()->first;
        if (next <= Clock::Real().Now()) break;
        (void)changed_.WaitUntil(mutex_, next);
      }
      stopping = stopping_;
      finished.swap(finished_);
      auto end = cuts_.upper_bound(Clock::Real().Now());
      for (auto cut = cuts_.begin(); cut != end; ++cut) due.push_back(std::move(cut->second));
      cuts_.erase(cuts_.begin(), end);
    }
    for (std::thread& thread : finished) thread.join();
    for (Cut& cut : due) {
      if (std::shared_ptr<TcpStream> stream = cut.stream.lock()) stream->Cut(std::move(cut.reason));
    }
  }
}

}  // namespace evenkeel
