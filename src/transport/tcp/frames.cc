#include "transport/tcp/frames.h"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "evenkeel/protocol/wire.h"

namespace evenkeel {
namespace {

// One read takes in a small message whole; of a large one so much is copied once.
constexpr std::size_t kBufferBytes = 16 << 10;
constexpr std::size_t kSmallestArena = 64 << 10;

template <class Number>
void PutNumber(std::byte* out, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) out[i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
}

template <class Number>
Number GetNumber(const std::byte* in) {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) value |= static_cast<Number>(in[i]) << (8 * i);
  return value;
}

absl::Status Broken(ssize_t count) {
  return absl::UnavailableError(count == 0 ? "the connection ended without a goodbye" : std::strerror(errno));
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- sending

OutFrame::OutFrame(std::string header, PayloadOut payload) : header_(std::move(header)), payload_(std::move(payload)) {
  PutNumber(prefix_.data(), static_cast<std::uint32_t>(header_.size()));
  PutNumber(prefix_.data() + sizeof(std::uint32_t), static_cast<std::uint64_t>(payload_.bytes.size()));
  size_ = prefix_.size() + header_.size() + payload_.bytes.size();
}

OutFrame OutFrame::Goodbye() { return OutFrame(std::string(), {}); }

int WriteFrames(int fd, std::span<OutFrame> frames, int flags) {
  std::array<iovec, 3 * kFramesAtOnce> pieces;
  std::size_t count = 0;
  frames = frames.first(std::min(frames.size(), kFramesAtOnce));
  for (OutFrame& frame : frames) {
    std::size_t skip = frame.sent_;
    auto add = [&](const void* data, std::size_t size) {
      std::size_t skipped = std::min(skip, size);
      skip -= skipped;
      if (size == skipped) return;
      // sendmsg only reads.
      pieces[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped, size - skipped};
    };
    add(frame.prefix_.data(), frame.prefix_.size());
    add(frame.header_.data(), frame.header_.size());
    add(frame.payload_.bytes.data(), frame.payload_.bytes.size());
  }
  msghdr call{};
  call.msg_iov = pieces.data();
  call.msg_iovlen = count;
  ssize_t sent = sendmsg(fd, &call, flags | MSG_NOSIGNAL);
  if (sent < 0) return errno;
  auto left = static_cast<std::size_t>(sent);
  for (OutFrame& frame : frames) {
    std::size_t part = std::min(left, frame.size_ - frame.sent_);
    frame.sent_ += part;
    left -= part;
  }
  return 0;
}

void FrameQueue::Grow() {
  if (count_ < ring_.size()) return;
  std::vector<OutFrame> larger(std::max<std::size_t>(16, ring_.size() * 2));
  for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) & (ring_.size() - 1)]);
  ring_.swap(larger);
  first_ = 0;
}

void FrameQueue::PushBack(OutFrame frame) {
  Grow();
  ring_[(first_ + count_++) & (ring_.size() - 1)] = std::move(frame);
}

void FrameQueue::PushFront(OutFrame frame) {
  Grow();
  first_ = (first_ + ring_.size() - 1) & (ring_.size() - 1);
  ring_[first_] = std::move(frame);
  ++count_;
}

OutFrame FrameQueue::PopFront() {
  OutFrame frame = std::exchange(ring_[first_], OutFrame());
  first_ = (first_ + 1) & (ring_.size() - 1);
  --count_;
  return frame;
}

// ------------------------------------------------------------------------------------------------------- receiving

FrameReader::FrameReader(int fd, std::int64_t max_message_bytes, Duration spin)
    : fd_(fd),
      max_message_bytes_(static_cast<std::uint64_t>(max_message_bytes)),
      spin_(spin),
      buffer_(std::make_unique<std::byte[]>(kBufferBytes)) {}

absl::Status FrameReader::Fill(std::size_t bytes) {
  if (buffered() >= bytes) return absl::OkStatus();
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, buffered());
    end_ = buffered();
    begin_ = 0;
  }
  int flags = spin_ > Duration::zero() ? MSG_DONTWAIT : 0;
  TimePoint until = kNever;
  while (buffered() < bytes) {
    ssize_t count = recv(fd_, buffer_.get() + end_, kBufferBytes - end_, flags);
    if (count > 0) {
      end_ += static_cast<std::size_t>(count);
    } else if (count < 0 && errno == EAGAIN) {
      TimePoint now = Clock::Real().Now();
      if (until == kNever) until = now + spin_;
      if (now >= until) flags = 0;
      sched_yield();  // the peer may be waiting for this core
    } else if (count == 0 || errno != EINTR) {
      return Broken(count);
    }
  }
  return absl::OkStatus();
}

absl::Status FrameReader::ReadFully(std::span<std::byte> out) {
  while (!out.empty()) {
    ssize_t count = recv(fd_, out.data(), out.size(), MSG_WAITALL);
    if (count > 0) {
      out = out.subspan(static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return Broken(count);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> FrameReader::Take(std::size_t bytes, std::vector<std::byte>& large) {
  if (bytes > kBufferBytes) {
    large.resize(bytes);
    std::size_t here = std::min(bytes, buffered());
    std::memcpy(large.data(), buffer_.get() + begin_, here);
    begin_ += here;
    EK_RETURN_IF_ERROR(ReadFully(std::span<std::byte>(large).subspan(here)));
    return std::span<const std::byte>(large);
  }
  EK_RETURN_IF_ERROR(Fill(bytes));
  std::span<const std::byte> view(buffer_.get() + begin_, bytes);
  begin_ += bytes;
  return view;
}

absl::StatusOr<FrameReader::Frame> FrameReader::Next() {
  EK_RETURN_IF_ERROR(Fill(kFramePrefixBytes));
  const std::byte* prefix = buffer_.get() + begin_;
  const auto header_bytes = GetNumber<std::uint32_t>(prefix);
  const auto payload_bytes = GetNumber<std::uint64_t>(prefix + sizeof(std::uint32_t));
  begin_ += kFramePrefixBytes;
  Frame frame;
  if (header_bytes == 0) {
    if (payload_bytes != 0) return absl::InvalidArgumentError("a message has a payload but no header");
    frame.goodbye = true;
    return frame;
  }
  if (header_bytes > kMaxHeaderBytes || payload_bytes > max_message_bytes_ ||
      header_bytes + payload_bytes > max_message_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("a message has ", header_bytes, " header and ", payload_bytes,
                                                     " payload bytes; at most ", kMaxHeaderBytes, " and together ",
                                                     max_message_bytes_, " are allowed"));
  }
  EK_ASSIGN_OR_RETURN(std::span<const std::byte> header, Take(header_bytes, large_header_));
  EK_ASSIGN_OR_RETURN(frame.message, DecodeHeader(header));
  frame.payload_bytes = static_cast<std::size_t>(payload_bytes);
  return frame;
}

absl::StatusOr<std::span<const std::byte>> FrameReader::Payload(const Frame& frame, std::span<std::byte> destination) {
  const std::size_t bytes = frame.payload_bytes;
  const std::size_t here = std::min(bytes, buffered());
  std::span<const std::byte> front(buffer_.get() + begin_, here);
  if (destination.empty()) {
    if (here == bytes) {
      begin_ += bytes;
      return front;
    }
    if (arena_.size() < bytes) {
      const std::size_t size = std::max(kSmallestArena, std::bit_ceil(bytes));
      arena_ = Arena();  // never two at once
      EK_ASSIGN_OR_RETURN(arena_, Arena::Allocate(size));
    }
    destination = {arena_.data(), bytes};
  }
  EK_CHECK(destination.size() == bytes);
  if (here > 0) std::memcpy(destination.data(), front.data(), here);
  begin_ += here;
  EK_RETURN_IF_ERROR(ReadFully(destination.subspan(here)));
  return std::span<const std::byte>(destination);
}

}  // namespace evenkeel
