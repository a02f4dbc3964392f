// What goes over a connection of the tcp way, after the handshake (handshake.h). Numbers are little-endian.
//
//   message   u32 header bytes (not 0)   u64 payload bytes   header (protocol/wire.h)   payload
//   goodbye   u32 0                      u64 0               nothing follows from this side
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

constexpr std::size_t kFramePrefixBytes = 12;

// One frame on its way out. The payload is written straight from where it lies. Not thread-safe.
class OutFrame {
 public:
  OutFrame() = default;  // void
  OutFrame(std::string header, PayloadOut payload);
  static OutFrame Goodbye();

  bool goodbye() const { return size_ == kFramePrefixBytes; }
  std::size_t size() const { return size_; }
  bool begun() const { return sent_ > 0; }
  bool done() const { return sent_ == size_; }

 private:
  friend int WriteFrames(int fd, std::span<OutFrame> frames, int flags);
  std::array<std::byte, kFramePrefixBytes> prefix_{};
  std::string header_;
  PayloadOut payload_;
  std::size_t size_ = 0;
  std::size_t sent_ = 0;
};

// Frames of one call of WriteFrames.
constexpr std::size_t kFramesAtOnce = 16;

// One sendmsg(flags) of what the frames have not sent yet, at most kFramesAtOnce of them. Returns 0 or errno.
int WriteFrames(int fd, std::span<OutFrame> frames, int flags);

// A queue whose memory stays. Not thread-safe.
class FrameQueue {
 public:
  bool empty() const { return count_ == 0; }
  OutFrame& front() { return ring_[first_]; }
  void PushBack(OutFrame frame);
  void PushFront(OutFrame frame);
  OutFrame PopFront();

 private:
  void Grow();
  std::vector<OutFrame> ring_;  // a power of two
  std::size_t first_ = 0, count_ = 0;
};

// Reads frames, each bounded before memory is taken for it. Not thread-safe.
class FrameReader {
 public:
  // `spin`: polls so long for a frame before it sleeps.
  FrameReader(int fd, std::int64_t max_message_bytes, Duration spin);

  struct Frame {
    bool goodbye = false;
    Message message;
    std::size_t payload_bytes = 0;
  };
  // Waits for the next frame, as long as the connection stands: the socket's keepalive ends that of a peer that is
  // gone. Errors: kUnavailable: the connection broke. kInvalidArgument, kResourceExhausted: the peer sent what is not
  // allowed.
  absl::StatusOr<Frame> Next();
  // The payload of that frame, read into `destination`; if that is empty, into memory that is valid until Next().
  // Requires destination to be empty or of frame.payload_bytes.
  absl::StatusOr<std::span<const std::byte>> Payload(const Frame& frame, std::span<std::byte> destination);

 private:
  std::size_t buffered() const { return end_ - begin_; }
  // Has at least `bytes` in the buffer.
  absl::Status Fill(std::size_t bytes);
  // Reads past the buffer, until `out` is full.
  absl::Status ReadFully(std::span<std::byte> out);
  // The next bytes: a view into the buffer, or else read into `large`.
  absl::StatusOr<std::span<const std::byte>> Take(std::size_t bytes, std::vector<std::byte>& large);

  const int fd_;
  const std::uint64_t max_message_bytes_;
  const Duration spin_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::vector<std::byte> large_header_;
  Arena arena_;  // of payloads that have no destination
};

}  // namespace evenkeel
