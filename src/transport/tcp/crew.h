// The streams of one way or door while they are open: their threads are joined here, and their deadlines kept.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/mutex.h"

namespace evenkeel {

class TcpStream;

// Thread-safe. Start once; Stop once, by the owner, when no stream is open any more.
class Crew {
 public:
  void Start();
  void Stop();

  // False: closed to new ones.
  bool Add(std::shared_ptr<TcpStream> stream);
  // The stream is over; `thread`, which may be the caller's own, is joined.
  void Remove(const std::shared_ptr<TcpStream>& stream, std::thread thread);
  // Cuts the stream at `deadline`, if it is still there.
  void CutAt(TimePoint deadline, std::weak_ptr<TcpStream> stream, absl::Status reason);
  // From now on Add refuses.
  void Seal();
  std::vector<std::shared_ptr<TcpStream>> Snapshot() const;
  // False: the deadline passed first.
  bool WaitUntilEmpty(TimePoint deadline) const;

 private:
  struct Cut {
    std::weak_ptr<TcpStream> stream;
    absl::Status reason;
  };
  void Run();

  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool sealed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<TcpStream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::multimap<TimePoint, Cut> cuts_ ABSL_GUARDED_BY(mutex_);  // at most one a stream
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace evenkeel
