// The ways of carrying protocol streams.
//
// Lifetime: a listener and a stream may outlive their transport's object. Destroying a transport cancels the streams it
// connected and returns when each handler has had its OnClosed; destroying it, or shutting a listener down, from a
// handler would wait for itself and is not allowed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "evenkeel/core/thread_pool.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

struct GrpcOptions {
  std::int64_t max_message_bytes = 64 << 20;
  std::int64_t max_queued_bytes = 1 << 30;  // a stream's send queue
  Duration keepalive = std::chrono::seconds(10);
  // After Close(), so long for queued messages to go out and the peer to end its side; then the stream is cut.
  Duration close_timeout = std::chrono::seconds(5);
};

// Of streams on sockets of their own, with nothing of gRPC's in between (for trusted networks).
struct TcpOptions {
  std::int64_t max_message_bytes = 64 << 20;
  std::int64_t max_queued_bytes = 1 << 30;  // a stream's send queue
  // A connection whose peer acknowledges nothing, or makes no room for what is queued, for twice so long is broken.
  Duration keepalive = std::chrono::seconds(10);
  Duration close_timeout = std::chrono::seconds(5);  // as GrpcOptions'
  Duration hello_timeout = std::chrono::seconds(5);  // a stranger's connection is closed that shows no token so soon
  // So long a stream that waits for a message polls its socket before it sleeps. It saves a wake-up where cores are
  // idle, and costs several where peers share one: off unless the machine has cores to spare.
  Duration spin = Duration::zero();
};
// gRPC, insecure channels, each made in one place. proto/evenkeel.proto is the contract. Connect fails at once when the
// address does not answer. Streams that end by a broken connection or a vanished peer close with kUnavailable.
std::unique_ptr<Transport> MakeGrpcTransport(const GrpcOptions& options);

// Shared memory, for processes of one user on one machine.
struct ShmOptions {
  static constexpr int kCoresToLook = 8;
  std::int64_t max_message_bytes = 64 << 20;
  std::int64_t max_queued_bytes = 1 << 30;  // sent and not consumed
  // How long whoever waits for a message looks for it at most before sleeping, where that is of use (core/patience.h).
  // Not on a machine of few cores: a core that is looked on takes no work from one that has too much of it, and nobody
  // who looks can see that.
  Duration look = AvailableCores() >= kCoresToLook ? std::chrono::microseconds(50) : Duration::zero();
  Duration close_timeout = std::chrono::seconds(5);  // as GrpcOptions'
};

// The ways of the data between workers and servers.
enum class DataPath : std::uint8_t { kGrpc, kTcp, kShm };

struct TransportOptions {
  GrpcOptions grpc;
  TcpOptions tcp;
  ShmOptions shm;
  // In order of preference; chosen for each stream from what its two ends have. Streams of Service::kChief take kShm
  // where both have it, else gRPC, listed here or not. Where kGrpc is missing, ends that have nothing in common do not
  // connect.
  std::vector<DataPath> data_paths = {DataPath::kShm, DataPath::kTcp, DataPath::kGrpc};
};
// gRPC to agree on a faster way, and where there is none. Conversations with the chief take shared memory or gRPC.
std::unique_ptr<Transport> MakeTransport(const TransportOptions& options);

// Within this process, on threads of its own, addresses are names; messages are moved, payloads referenced. For tests
// and ThreadSanitizer. A name may end in ":0" for a number that is free.
std::unique_ptr<Transport> MakeInprocTransport(std::int64_t max_queued_bytes = 1 << 30);

}  // namespace evenkeel
