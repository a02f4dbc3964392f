// The wire form of messages: evenkeel.v1.Packet of proto/evenkeel.proto. The payload is not part of what is encoded
// here: a transport appends it as field kPayloadField, so that its bytes are never copied.
//
// Threading: thread-safe. Bytes come from strangers: anything malformed is an error, never a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/protocol/messages.h"

namespace evenkeel {

// Number of Packet.payload.
constexpr std::uint32_t kPayloadField = 100;

// Bounds of what is decoded.
constexpr std::size_t kMaxHeaderBytes = 32 << 20;
constexpr std::size_t kMaxStringBytes = 16 << 20;
constexpr std::size_t kMaxListEntries = 1 << 20;

// The packet's bytes without payload. Bytes that are not UTF-8 in a string become '?'.
std::string EncodeHeader(const Message& message);
// A payload in `bytes` is ignored. Errors: kInvalidArgument names the field (not a packet, no known body, a value out
// of range, a bound exceeded).
absl::StatusOr<Message> DecodeHeader(std::span<const std::byte> bytes);

// Tag and length that stand before a payload of so many bytes; empty for none.
std::string EncodePayloadPrefix(std::size_t payload_bytes);

// A packet split at its payload.
struct SplitPacket {
  std::string header;                               // for DecodeHeader
  std::vector<std::span<const std::byte>> payload;  // views into the pieces
};
// Splits a packet that lies in pieces, without copying its payload. Errors: kInvalidArgument with the offset.
absl::StatusOr<SplitPacket> SplitPayload(std::span<const std::span<const std::byte>> pieces);

}  // namespace evenkeel
