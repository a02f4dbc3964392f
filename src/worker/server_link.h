// A worker's stream to one server: says hello, comes back after a broken stream with a growing delay. It stages and
// pulls in one layout at a time, whose number its messages carry.
//
// Threading: thread-safe. Callbacks come from the transport's threads, one at a time for a link, never under its lock.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/messages.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

class ServerLink {
 public:
  struct Callbacks {
    std::function<Envelope()> envelope;
    std::function<void()> on_up;  // the server said HelloAck on a fresh stream
    std::function<void()> on_down;
    std::function<void(Message, const PayloadIn&)> on_message;  // all but Hello's answers
    std::function<void(const absl::Status&)> on_refused;        // for good; kFailedPrecondition: fenced
  };
  ServerLink(std::string server, std::string address, std::string worker, Transport& transport, const Clock& clock,
             Callbacks callbacks);
  ~ServerLink();

  void SetLayout(LayoutNumber layout);
  // Connects where that is due. Call again at NextAttempt().
  void Poll();
  TimePoint NextAttempt() const;
  bool up() const;
  // Since when it has been down, and why; kNever while up.
  TimePoint down_since() const;
  std::string last_error() const;
  // What carries its data; empty while down.
  std::string way() const;
  const std::string& server() const { return server_; }
  const std::string& address() const { return address_; }

  bool Send(Body body, PayloadOut payload = {});
  void Close();

 private:
  struct Handler;
  Envelope MakeEnvelope() const;
  void OnMessage(std::uint64_t attempt, Message message, const PayloadIn& payload);
  void OnClosed(std::uint64_t attempt, const absl::Status& status);

  const std::string server_, address_, worker_;
  Transport& transport_;
  const Clock& clock_;
  const Callbacks callbacks_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // handlers hold it weakly

  mutable Mutex mutex_;
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  LayoutNumber layout_ ABSL_GUARDED_BY(mutex_);
  bool up_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint next_attempt_ ABSL_GUARDED_BY(mutex_);
  TimePoint down_since_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace evenkeel
