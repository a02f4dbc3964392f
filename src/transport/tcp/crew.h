// The streams of one way or door while they are open: their threads are joined here, and their deadlines kept.
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/mutex.h"
#include "transport/open_streams.h"

namespace evenkeel {

class TcpStream;

// Thread-safe. Start once; Stop once, by the owner, when no stream is open any more.
class Crew : public OpenStreams<TcpStream> {
 public:
  void Start();
  void Stop();

  // The stream is over; `thread`, which may be the caller's own, is joined.
  void Remove(const std::shared_ptr<TcpStream>& stream, std::thread thread);
  // Cuts the stream at `deadline`, if it is still there.
  void CutAt(TimePoint deadline, std::weak_ptr<TcpStream> stream, absl::Status reason);

 private:
  struct Cut {
    std::weak_ptr<TcpStream> stream;
    absl::Status reason;
  };
  void Run();

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::multimap<TimePoint, Cut> cuts_ ABSL_GUARDED_BY(mutex_);  // at most one a stream
  std::vector<std::thread> finished_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace evenkeel
