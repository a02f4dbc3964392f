// The ways of carrying protocol streams.
#pragma once

#include <cstdint>
#include <memory>

#include "evenkeel/protocol/stream.h"

namespace evenkeel {

struct GrpcOptions {
  std::int64_t max_message_bytes = 64 << 20;
  std::int64_t max_queued_bytes = 1 << 30;  // a stream's send queue
  Duration keepalive = std::chrono::seconds(10);
};
// gRPC, insecure channels, each made in one place. proto/evenkeel.proto is the contract.
std::unique_ptr<Transport> MakeGrpcTransport(const GrpcOptions& options);

// Within this process, on threads of its own, addresses are names; messages are moved, payloads referenced. For tests and
// ThreadSanitizer.
std::unique_ptr<Transport> MakeInprocTransport();

}  // namespace evenkeel
