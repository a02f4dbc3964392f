// Packets as gRPC byte buffers, payloads not copied.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>

#include "absl/status/status.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

// The buffer refers to payload.bytes and holds payload.owner until gRPC frees the slice.
grpc::ByteBuffer EncodePacket(const Message& message, PayloadOut payload);

// Calls `use` with what the buffer holds; the payload's pieces are the buffer's slices. Errors: kInvalidArgument.
absl::Status DecodePacket(const grpc::ByteBuffer& buffer, const std::function<void(Message, const PayloadIn&)>& use);

}  // namespace evenkeel
