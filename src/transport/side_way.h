// How a way besides gRPC plugs into the transport for parameter servers' streams.
//
// gRPC carries the offer of a door to the peer; the peer opens its stream there.
// Threading: thread-safe. A way outlives none of its own calls; its doors may outlive it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/stream.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {

// The listening end of a way besides gRPC.
class SideDoor {
 public:
  virtual ~SideDoor() = default;  // shuts down
  // What a peer needs to open one stream, once (opaque bytes with a one-time token); void after the offer's life (10
  // s). Errors: kResourceExhausted: too many offers are open. kUnavailable: shut down.
  virtual absl::StatusOr<std::string> Offer() = 0;
  // As Listener's: refuses new streams, lets queued messages go out until the deadline, closes all, returns when every
  // handler has had its OnClosed.
  virtual void Shutdown(Duration grace) = 0;
};

class SideWay {
 public:
  virtual ~SideWay() = default;          // ends the streams that it connected, as Transport's destructor
  virtual std::string name() const = 0;  // "tcp", "shm"
  // Only peers of the same reach try this way; empty: all do. (shm: the host's boot id)
  virtual std::string reach() const = 0;
  // `host`: as in the listener's address, without the port. Streams that peers open go to `acceptor`.
  virtual absl::StatusOr<std::unique_ptr<SideDoor>> Open(const std::string& host, Acceptor acceptor) = 0;
  // Blocks until the stream is open or the deadline passes; on an error `handler` is never called. Called on a thread
  // that may block.
  virtual absl::StatusOr<std::shared_ptr<Stream>> Connect(const std::string& host, const std::string& offer,
                                                          std::shared_ptr<StreamHandler> handler,
                                                          TimePoint deadline) = 0;
};

std::unique_ptr<SideWay> MakeTcpWay(const TcpOptions& options);

}  // namespace evenkeel
