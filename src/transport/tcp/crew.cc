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

// The thread first: whoever finds no stream open may stop the crew.
void Crew::Remove(const std::shared_ptr<TcpStream>& stream, std::thread thread) {
  if (thread.joinable()) {
    MutexLock lock(mutex_);
    finished_.push_back(std::move(thread));
    changed_.NotifyAll();
  }
  OpenStreams::Remove(stream);
}

void Crew::CutAt(TimePoint deadline, std::weak_ptr<TcpStream> stream, absl::Status reason) {
  MutexLock lock(mutex_);
  cuts_.emplace(deadline, Cut{std::move(stream), std::move(reason)});
  changed_.NotifyAll();
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
