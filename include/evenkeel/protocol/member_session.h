// A member's side of the conversation with the chief: joins, renews its lease, comes back after a broken stream, and
// gives up after chief_timeout without a word of it.
//
// Threading: Send, SetState and Leave are thread-safe and may be called from the callbacks. Callbacks come one at a
// time, never under a lock of the session. Destruction waits for a callback in progress; do not destroy from a
// callback. Lost messages: what is sent while the stream is down is dropped; after each Welcome the owner says again
// what matters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/messages.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

struct MemberSessionOptions {
  std::string chief_address;  // "host:port"
  std::string spec_hash;
  std::string job_id;  // of the job that this process belongs to already; empty: it takes the chief's
  Join join;           // its nonce names this life of the process
  Duration chief_timeout = std::chrono::seconds(60);   // since the chief's last word
  Duration connect_timeout = std::chrono::seconds(5);  // of one attempt
};

class MemberSession {
 public:
  struct Callbacks {
    // Every message of the chief's, Welcome first on each stream. Messages of an older term are left out.
    std::function<void(Message)> on_message;
    // Once, last. kPermissionDenied: refused for good; kFailedPrecondition: this incarnation was fenced;
    // kDeadlineExceeded: the chief did not answer for chief_timeout; ok: the stream ended after Leave, or a JobEnd
    // came.
    std::function<void(const absl::Status&)> on_end;
  };

  MemberSession(MemberSessionOptions options, Transport& transport, const Clock& clock, Callbacks callbacks);
  ~MemberSession();
  MemberSession(const MemberSession&) = delete;
  MemberSession& operator=(const MemberSession&) = delete;

  void Start();
  // False when there is no stream or no Welcome on it yet.
  bool Send(Body body);
  // What the process does or waits for; travels with the next renewal.
  void SetState(const std::string& state);
  void SetDataPaths(const std::string& data_paths);  // told at once
  void SetMemorySamples(std::int64_t samples);       // of a worker's memory; travels with the next renewal
  // Says goodbye; on_end(ok) follows once the chief has closed the stream, or after `grace`.
  void Leave(const std::string& reason, Duration grace);
  // The envelope that this member's messages carry now, for streams to servers too.
  Envelope envelope() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace evenkeel
