// Sockets of the tcp way: opened, bound, connected and set up for bulk data.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Sends small messages at once, large ones fast, and notices a peer that is gone within twice options.keepalive.
void TuneSocket(int fd, const TcpOptions& options);

struct ListeningSockets {
  std::vector<Fd> sockets;  // one for each address of the host; at least one
  int port = 0;             // of all
};
// Listens on a free port. Errors: kInvalidArgument if the host is unknown or not of this machine.
absl::StatusOr<ListeningSockets> ListenOnHost(const std::string& host);

// Tries the host's addresses in turn. The socket blocks. Errors: kUnavailable names host and port.
absl::StatusOr<Fd> ConnectToHost(const std::string& host, int port, TimePoint deadline);

// Errors: kUnavailable: the deadline passed, or the connection broke.
absl::Status SendBy(int fd, std::span<const std::byte> bytes, TimePoint deadline);
absl::Status ReceiveBy(int fd, std::span<std::byte> bytes, TimePoint deadline);

// Milliseconds for poll(), rounded up; at least 0.
int PollTimeout(TimePoint deadline);

// "127.0.0.1:4711".
std::string PeerName(int fd);

}  // namespace evenkeel
