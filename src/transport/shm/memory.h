// Mappings of memory that another process shares, and messages with descriptors over a unix socket.
//
// Ownership: a Mapping unmaps and a Descriptor closes on destruction; both are movable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"

namespace evenkeel::shm {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { Reset(); }
  void Reset();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Of a descriptor that a peer gave: it must be sealed against shrinking and hold `size` bytes.
  // Errors: kInvalidArgument says what is wrong with it; kResourceExhausted.
  static absl::StatusOr<Mapping> Of(int fd, std::size_t size, bool writable);
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A sealed memfd of `size` zeroed bytes that both ends may write. Errors: kResourceExhausted, kUnimplemented.
absl::StatusOr<Descriptor> CreateWritable(std::size_t size);

// One message over a SOCK_SEQPACKET socket, with a descriptor or (-1) without; never blocks.
// Errors: kUnavailable: the peer is gone, or does not read.
absl::Status SendRecord(int socket, std::span<const std::byte> record, int fd);
// Requires that a record waits to be read; never blocks. Errors: kUnavailable: nothing waits, or the peer is gone;
// kInvalidArgument: it is of another size.
struct Record {
  Descriptor fd;  // if one came
};
absl::StatusOr<Record> ReceiveRecord(int socket, std::span<std::byte> record);

// Errors: kUnavailable: the deadline passed.
absl::Status WaitReadable(int socket, TimePoint deadline);

// Errors: kPermissionDenied: the process at the other end of the socket belongs to another user.
absl::Status CheckSameUser(int socket);
std::int64_t PeerProcess(int socket);

}  // namespace evenkeel::shm
