#include "transport/grpc/codec.h"

#include <grpcpp/support/slice.h>

#include <array>
#include <vector>

#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/wire.h"

namespace evenkeel {
namespace {

// Below this a copy is cheaper than a reference.
constexpr std::size_t kCopyBytes = 2048;

using Owner = std::shared_ptr<const void>;

}  // namespace

grpc::ByteBuffer EncodePacket(const Message& message, PayloadOut payload) {
  std::string head = EncodeHeader(message) + EncodePayloadPrefix(payload.bytes.size());
  if (payload.bytes.size() < kCopyBytes) {
    head.append(reinterpret_cast<const char*>(payload.bytes.data()), payload.bytes.size());
    grpc::Slice slice(head);
    return grpc::ByteBuffer(&slice, 1);
  }
  // gRPC's slices are not const, but nobody writes to one that is sent.
  void* bytes = const_cast<std::byte*>(payload.bytes.data());
  std::array<grpc::Slice, 2> slices = {
      grpc::Slice(head), grpc::Slice(
                             bytes, payload.bytes.size(), [](void* owner) { delete static_cast<Owner*>(owner); },
                             new Owner(std::move(payload.owner)))};
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::Status DecodePacket(const grpc::ByteBuffer& buffer, const std::function<void(Message, const PayloadIn&)>& use) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return absl::InvalidArgumentError("[decode] packet cannot be read");
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(slices.size());
  for (const grpc::Slice& slice : slices) {
    pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  EK_ASSIGN_OR_RETURN(SplitPacket packet, SplitPayload(pieces));
  EK_ASSIGN_OR_RETURN(Message message, DecodeHeader(AsBytes(packet.header)));
  use(std::move(message), PayloadIn(packet.payload));
  return absl::OkStatus();
}

}  // namespace evenkeel
