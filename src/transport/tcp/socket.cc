#include "transport/tcp/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr int kBacklog = 64;
constexpr int kAddressesMax = 8;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("[address] host \"", host, "\" is unknown (", gai_strerror(failure), ")"));
  }
  return Addresses(found, &freeaddrinfo);
}

void SetInt(int fd, int level, int name, int value) {
  // What a kernel does not have costs speed or patience, no correctness.
  (void)setsockopt(fd, level, name, &value, sizeof(value));
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// A listening socket, or nothing and errno.
Fd TryListen(const sockaddr* address, socklen_t size, bool only_v6) {
  Fd fd(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return fd;
  if (address->sa_family == AF_INET6) SetInt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, only_v6 ? 1 : 0);
  if (bind(fd.get(), address, size) != 0 || listen(fd.get(), kBacklog) != 0) return Fd();
  return fd;
}

int ListeningPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? PortOf(address) : 0;
}

// 0, or the errno of connecting.
int TryConnect(int fd, const addrinfo& info, TimePoint deadline) {
  if (connect(fd, info.ai_addr, info.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  while (true) {
    pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
    int ready = poll(&wait, 1, PollTimeout(deadline));
    if (ready == 0) return ETIMEDOUT;
    if (ready > 0) break;
    if (errno != EINTR) return errno;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

// Waits for `events`. Errors: kUnavailable.
absl::Status WaitFor(int fd, short events, TimePoint deadline) {
  pollfd wait{.fd = fd, .events = events, .revents = 0};
  int ready = poll(&wait, 1, PollTimeout(deadline));
  if (ready == 0) return absl::UnavailableError("the peer did not answer in time");
  if (ready < 0 && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

void TuneSocket(int fd, const TcpOptions& options) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // bbr, the default of some systems, halves large transfers over the loopback.
  constexpr char kCubic[] = "cubic";
  (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic, sizeof(kCubic) - 1);
  // Idle: probes begin after one keepalive time. Anything unacknowledged, or a closed window, ends the connection after
  // one and a half, which leaves a half for the kernel's own timers.
  auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(options.keepalive).count();
  auto seconds = [](std::int64_t value_ms) { return static_cast<int>(std::max<std::int64_t>(1, value_ms / 1000)); };
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds(ms));
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds(ms / 4));
  SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(ms * 3 / 2));
}

absl::StatusOr<ListeningSockets> ListenOnHost(const std::string& host) {
  ListeningSockets result;
  if (host == "0.0.0.0" || host == "::") {  // both families, as gRPC takes it
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    Fd fd = TryListen(reinterpret_cast<const sockaddr*>(&any), sizeof(any), /*only_v6=*/false);
    if (fd.valid()) {
      result.port = ListeningPort(fd.get());
      result.sockets.push_back(std::move(fd));
      return result;
    }
  }
  EK_ASSIGN_OR_RETURN(Addresses addresses, Resolve(host, 0, AI_PASSIVE));
  int error = 0;
  for (addrinfo* info = addresses.get(); info != nullptr && result.sockets.size() < kAddressesMax;
       info = info->ai_next) {
    // The other addresses take the first one's port; where it is not free there, peers come by the first.
    if (info->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(info->ai_addr)->sin6_port = htons(static_cast<std::uint16_t>(result.port));
    } else {
      reinterpret_cast<sockaddr_in*>(info->ai_addr)->sin_port = htons(static_cast<std::uint16_t>(result.port));
    }
    Fd fd = TryListen(info->ai_addr, info->ai_addrlen, /*only_v6=*/true);
    if (!fd.valid()) {
      error = errno;
      continue;
    }
    if (result.port == 0) result.port = ListeningPort(fd.get());
    result.sockets.push_back(std::move(fd));
  }
  if (result.sockets.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("[listen] ", host, ": cannot be bound (", std::strerror(error),
                                                   "); give an address of this machine"));
  }
  return result;
}

absl::StatusOr<Fd> ConnectToHost(const std::string& host, int port, TimePoint deadline) {
  absl::StatusOr<Addresses> addresses = Resolve(host, port, 0);
  if (!addresses.ok()) return absl::UnavailableError(addresses.status().message());
  int error = 0;
  for (const addrinfo* info = addresses->get(); info != nullptr; info = info->ai_next) {
    Fd fd(socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = fd.valid() ? TryConnect(fd.get(), *info, deadline) : errno;
    if (error == 0 && fcntl(fd.get(), F_SETFL, 0) != 0) error = errno;
    if (error == 0) return fd;
  }
  return absl::UnavailableError(
      absl::StrCat("[connect] ", host, ":", port, " cannot be reached (", std::strerror(error), ")"));
}

absl::Status SendBy(int fd, std::span<const std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    ssize_t count = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      EK_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(std::strerror(errno));
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveBy(int fd, std::span<std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    ssize_t count = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (count == 0) {
      return absl::UnavailableError("the peer closed the connection");
    } else if (errno == EAGAIN) {
      EK_RETURN_IF_ERROR(WaitFor(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(std::strerror(errno));
    }
  }
  return absl::OkStatus();
}

int PollTimeout(TimePoint deadline) {
  if (deadline == kNever) return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

std::string PeerName(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "a peer that is gone";
  }
  const bool brackets = address.ss_family == AF_INET6;
  return absl::StrCat(brackets ? "[" : "", host, brackets ? "]:" : ":", PortOf(address));
}

}  // namespace evenkeel
