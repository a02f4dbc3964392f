#include "raw_tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/status.h"

namespace evenkeel::bench {
namespace {

constexpr std::int64_t kBlock = 4 << 20;

struct Header {
  std::int64_t push = 0, pull = 0;
};

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat("[raw tcp] ", what, ": ", std::strerror(errno)));
}

struct Socket {
  explicit Socket(int f) : fd(f) {}
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~Socket() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

// As the transports under test set theirs.
void Tune(int fd, Duration timeout) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  constexpr char kCubic[] = "cubic";
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic, sizeof(kCubic) - 1);
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
  const timeval limit{.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

bool SendAll(int fd, const std::byte* bytes, std::int64_t count) {
  while (count > 0) {
    const ssize_t n = send(fd, bytes, static_cast<std::size_t>(std::min(count, kBlock)), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes += n;
    count -= n;
  }
  return true;
}

bool ReceiveAll(int fd, std::byte* bytes, std::int64_t count) {
  while (count > 0) {
    const ssize_t n = recv(fd, bytes, static_cast<std::size_t>(std::min(count, kBlock)), MSG_WAITALL);
    if (n <= 0) return false;
    bytes += n;
    count -= n;
  }
  return true;
}

// Until the client goes or says nothing for too long.
void Answer(Socket socket) {
  Arena memory;
  Header header;
  while (ReceiveAll(socket.fd, reinterpret_cast<std::byte*>(&header), sizeof(header))) {
    const std::int64_t most = std::max({header.push, header.pull, std::int64_t{1}});
    if (static_cast<std::int64_t>(memory.size()) < most) {
      auto larger = Arena::Allocate(static_cast<std::size_t>(most));
      if (!larger.ok()) return;
      memory = *std::move(larger);
    }
    if (!ReceiveAll(socket.fd, memory.data(), header.push)) return;
    if (!SendAll(socket.fd, memory.data(), std::max<std::int64_t>(header.pull, 1))) return;
  }
}

}  // namespace

absl::Status ServeRawTcp(Line& line, Duration timeout) {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(listener.fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || listen(listener.fd, 64) != 0 ||
      getsockname(listener.fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Failed("cannot listen");
  }
  std::thread acceptor([&] {
    std::vector<std::thread> answering;
    for (;;) {
      Socket client(accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC));
      if (client.fd < 0) break;
      // A server that waits for the next burst waits for long; its end is that of the line.
      Tune(client.fd, std::chrono::hours(24));
      answering.emplace_back([socket = std::move(client)]() mutable { Answer(std::move(socket)); });
    }
    for (std::thread& thread : answering) thread.join();
  });
  const absl::Status told = line.Send(absl::StrCat("+", ntohs(address.sin_port)), Clock::Real().Now() + timeout);
  if (told.ok()) (void)line.Receive(kNever);
  shutdown(listener.fd, SHUT_RDWR);
  acceptor.join();  // clients have gone before, or go now: the starter ends this process otherwise
  return told;
}

absl::Status RunRawTcpClient(Line& line, int port, int connections, std::vector<RawExchange> exchanges,
                             Duration timeout) {
  std::vector<Socket> sockets;
  for (int i = 0; i < connections; ++i) {
    sockets.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Tune(sockets.back().fd, timeout);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (connect(sockets.back().fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return Failed("cannot connect");
    }
  }
  std::int64_t most = 1;
  for (const RawExchange& exchange : exchanges) most = std::max({most, exchange.push, exchange.pull});
  EK_ASSIGN_OR_RETURN(Arena out, Arena::Allocate(static_cast<std::size_t>(most)));
  EK_ASSIGN_OR_RETURN(Arena in, Arena::Allocate(static_cast<std::size_t>(most)));
  auto round = [&](const RawExchange& exchange) {
    const std::int64_t n = connections;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t begin = exchange.push * i / n, end = exchange.push * (i + 1) / n;
      const Header header{end - begin, exchange.pull * (i + 1) / n - exchange.pull * i / n};
      const int fd = sockets[static_cast<std::size_t>(i)].fd;
      // In one segment with the first bytes, as every framing would have it.
      if (send(fd, &header, sizeof(header), MSG_NOSIGNAL | (end > begin ? MSG_MORE : 0)) != sizeof(header))
        return false;
      if (!SendAll(fd, out.data() + begin, end - begin)) return false;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t begin = exchange.pull * i / n, end = exchange.pull * (i + 1) / n;
      const int fd = sockets[static_cast<std::size_t>(i)].fd;
      if (!ReceiveAll(fd, in.data() + begin, std::max<std::int64_t>(end - begin, 1))) return false;
    }
    return true;
  };
  return ServeBursts(line, timeout, [&](const Burst& burst) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> times;
    times.reserve(burst.rounds);
    for (std::uint32_t i = 0; i < burst.warm + burst.rounds; ++i) {
      const TimePoint begin = Clock::Real().Now();
      if (!round(exchanges[burst.operation])) return Failed("a round broke off, or took too long");
      if (i >= burst.warm) times.push_back(ToSeconds(Clock::Real().Now() - begin));
    }
    return times;
  });
}

}  // namespace evenkeel::bench
