// Splits packets at their payload, on protobuf's wire format: a packet is a sequence of (tag, value), tag = number * 8
// + type as a varint.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "evenkeel/protocol/wire.h"

namespace evenkeel {
namespace {

constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void AppendVarint(std::uint64_t value, std::string& out) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

// Reads on over pieces.
class Cursor {
 public:
  explicit Cursor(std::span<const std::span<const std::byte>> pieces) : pieces_(pieces) { SkipEmpty(); }
  bool done() const { return piece_ == pieces_.size(); }
  std::size_t offset() const { return offset_; }

  // False at the end, or if it has more than 64 bits. Copies what it reads to `raw`.
  bool ReadVarint(std::uint64_t& value, std::string& raw) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (done()) return false;
      auto byte = static_cast<std::uint8_t>(pieces_[piece_][at_]);
      raw.push_back(static_cast<char>(byte));
      Advance(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  // Calls sink(span) for the next `count` bytes. False if there are fewer.
  template <class Sink>
  bool Read(std::uint64_t count, Sink&& sink) {
    while (count > 0) {
      if (done()) return false;
      std::size_t here = static_cast<std::size_t>(std::min<std::uint64_t>(count, pieces_[piece_].size() - at_));
      sink(pieces_[piece_].subspan(at_, here));
      Advance(here);
      count -= here;
    }
    return true;
  }

 private:
  void Advance(std::size_t count) {
    at_ += count;
    offset_ += count;
    SkipEmpty();
  }
  void SkipEmpty() {
    while (piece_ < pieces_.size() && at_ == pieces_[piece_].size()) {
      ++piece_;
      at_ = 0;
    }
  }

  std::span<const std::span<const std::byte>> pieces_;
  std::size_t piece_ = 0, at_ = 0, offset_ = 0;
};

}  // namespace

std::string EncodePayloadPrefix(std::size_t payload_bytes) {
  std::string prefix;
  if (payload_bytes == 0) return prefix;
  AppendVarint(kPayloadField << 3 | kBytes, prefix);
  AppendVarint(payload_bytes, prefix);
  return prefix;
}

absl::StatusOr<SplitPacket> SplitPayload(std::span<const std::span<const std::byte>> pieces) {
  SplitPacket result;
  Cursor cursor(pieces);
  auto malformed = [&](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("[decode] packet has ", what, " at byte ", cursor.offset()));
  };
  auto keep = [&](std::span<const std::byte> bytes) {
    result.header.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::string raw;
  while (!cursor.done()) {
    raw.clear();
    std::uint64_t tag = 0, length = 0;
    if (!cursor.ReadVarint(tag, raw)) return malformed("a malformed tag");
    switch (tag & 7) {
      case kVarint:
        if (!cursor.ReadVarint(length, raw)) return malformed("a malformed number");
        length = 0;
        break;
      case kFixed64:
        length = 8;
        break;
      case kFixed32:
        length = 4;
        break;
      case kBytes:
        if (!cursor.ReadVarint(length, raw)) return malformed("a malformed length");
        break;
      default:
        return malformed("an unknown wire type");
    }
    bool complete;
    if (tag == (kPayloadField << 3 | kBytes)) {
      result.payload.clear();  // as protobuf: the last one counts
      complete = cursor.Read(length, [&](std::span<const std::byte> bytes) { result.payload.push_back(bytes); });
    } else {
      if (length > kMaxHeaderBytes || result.header.size() + raw.size() + length > kMaxHeaderBytes) {
        return malformed("too large a field");
      }
      result.header += raw;
      complete = cursor.Read(length, keep);
    }
    if (!complete) return malformed("a field cut short");
  }
  return result;
}

}  // namespace evenkeel
