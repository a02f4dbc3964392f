// A way besides gRPC from a worker to a server: gRPC carries the offer, the way carries the stream.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/stream.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {

// The listening end.
class SideDoor {
 public:
  virtual ~SideDoor() = default;  // shuts down
  // What a peer needs to open one stream, once, within 10 s: opaque bytes with a token that cannot be guessed.
  // Errors: kResourceExhausted: too many offers are open.
  virtual absl::StatusOr<std::string> Offer() = 0;
  // As Listener's.
  virtual void Shutdown(Duration grace) = 0;
};

// Threading: thread-safe.
class SideWay {
 public:
  virtual ~SideWay() = default;  // ends the streams that it connected, as Transport's destructor
  virtual std::string name() const = 0;
  // Only peers of the same reach try this way; empty: all do.
  virtual std::string reach() const = 0;
  // `host` as in the listener's address, without the port.
  virtual absl::StatusOr<std::unique_ptr<SideDoor>> Open(const std::string& host, Acceptor acceptor) = 0;
  // Blocks until the stream is open, at most until the deadline. On an error `handler` is never called.
  virtual absl::StatusOr<std::shared_ptr<Stream>> Connect(const std::string& host, const std::string& offer,
                                                          std::shared_ptr<StreamHandler> handler,
                                                          TimePoint deadline) = 0;
  // As Transport's.
  virtual void Attend(absl::FunctionRef<bool()>) {}
};

std::unique_ptr<SideWay> MakeShmWay(const ShmOptions& options);
std::unique_ptr<SideWay> MakeTcpWay(const TcpOptions& options);

}  // namespace evenkeel
