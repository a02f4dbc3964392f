// Bidirectional streams of messages between two processes. The roles speak through this interface; rooms under
// transport/ implement it.
//
// Threading: Send and Close are thread-safe. A handler's calls come one at a time for a stream, from the transport's
// threads or whoever attends; handlers must not block. Order within a stream is kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

// Bytes to send without a copy: they stay unchanged while `owner` is held, which the transport drops once it needs them
// no more.
struct PayloadOut {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// Bytes received, in pieces; valid during the handler's call only. They may lie in the sender's own memory.
class PayloadIn {
 public:
  PayloadIn() = default;
  // `revoked`: not 0 once the sender may change the bytes, because the stream broke; null: it never may.
  explicit PayloadIn(std::span<const std::span<const std::byte>> pieces,
                     const std::atomic<std::uint32_t>* revoked = nullptr)
      : pieces_(pieces), revoked_(revoked) {
    for (const auto& piece : pieces_) size_ += piece.size();
  }
  std::size_t size() const { return size_; }
  // What is read from them counts only if Whole() says true afterwards.
  std::span<const std::span<const std::byte>> pieces() const { return pieces_; }
  // False: the sender may have changed the bytes meanwhile. The stream is broken; OnClosed follows.
  [[nodiscard]] bool Whole() const;
  // Requires out.size() == size(). Nothing is copied where the bytes lie in `out` already. Returns Whole().
  [[nodiscard]] bool CopyTo(std::span<std::byte> out) const;

 private:
  std::span<const std::span<const std::byte>> pieces_;
  std::size_t size_ = 0;
  const std::atomic<std::uint32_t>* revoked_ = nullptr;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Queues the message and returns. Errors: kUnavailable once closed; kResourceExhausted when the queue's bound is
  // reached (the stream is then closed: a peer that reads nothing must not fill our memory).
  virtual absl::Status Send(Message message, PayloadOut payload = {}) = 0;
  // Ends the stream after what is queued; OnClosed follows. Idempotent.
  virtual void Close() = 0;
  virtual std::string peer() const = 0;
  // What carries it: "grpc", "tcp", "shm", "inproc"; empty: not known yet.
  virtual std::string way() const = 0;
};

class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // Where the payload of a message that is about to arrive should lie: `payload_bytes` of memory, or nothing. A
  // transport that can reads it straight into there, and it is then OnMessage's payload; others do not ask. When the
  // stream breaks first, only OnClosed follows.
  virtual std::span<std::byte> Destination(Stream&, const Message&, std::size_t /*payload_bytes*/) { return {}; }
  virtual void OnMessage(Stream& stream, Message message, const PayloadIn& payload) = 0;
  // Exactly once, after the last OnMessage. Ok: the peer closed in good order.
  virtual void OnClosed(Stream& stream, const absl::Status& status) = 0;
};

// Which contract of proto/ a stream speaks.
enum class Service : std::uint8_t { kChief, kParameterServer };

// Gives the handler of a stream that a peer opened. The stream may be kept; it lives as long as anyone holds it.
using Acceptor = std::function<std::shared_ptr<StreamHandler>(std::shared_ptr<Stream>)>;

class Listener {
 public:
  virtual ~Listener() = default;  // shuts down
  virtual int port() const = 0;   // the real one
  // Refuses new streams, lets queued messages go out until the deadline, then closes all; returns when every handler
  // has had its OnClosed.
  virtual void Shutdown(Duration grace) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // `address`: "host:port"; port 0: any free one. Errors: kInvalidArgument or kUnavailable name the address ("port 2222
  // is in use").
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(Service service, const std::string& address,
                                                           Acceptor acceptor) = 0;
  // Returns at once; a connection that cannot be made within `timeout` ends in OnClosed(kUnavailable naming the
  // address).
  virtual std::shared_ptr<Stream> Connect(Service service, const std::string& address,
                                          std::shared_ptr<StreamHandler> handler, Duration timeout) = 0;
  // For a thread that is about to wait for what streams connected here bring: until `over` it may look for that itself,
  // and their handlers are then called on it. Returns soon, after a millisecond or so at most; whether and how long it
  // looks depends on how often that has been of use. The caller holds no lock that a handler takes.
  virtual void Attend(absl::FunctionRef<bool()> /*over*/) {}
};

// Delays between attempts: exponential from `first` to `cap`, each drawn from [0.5, 1) of it.
class Backoff {
 public:
  Backoff(Duration first, Duration cap, std::uint64_t seed) : first_(first), cap_(cap), seed_(seed) {}
  Duration Next();
  void Reset() { attempt_ = 0; }

 private:
  Duration first_, cap_;
  std::uint64_t seed_;
  std::uint64_t attempt_ = 0, drawn_ = 0;
};

}  // namespace evenkeel
