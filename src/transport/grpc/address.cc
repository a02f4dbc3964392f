#include "transport/grpc/address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

// 0, or the errno of binding to the address.
int TryBind(const addrinfo& info) {
  int fd = socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC, info.ai_protocol);
  if (fd < 0) return errno;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (info.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  int error = bind(fd, info.ai_addr, info.ai_addrlen) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address) {
  auto bad = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("[address] \"", address, "\" ", why, "; right is \"host:port\", IPv6 as \"[::1]:2222\""));
  };
  std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return bad("has no port");
  SocketAddress result{.host = address.substr(0, colon)};
  if (!absl::SimpleAtoi(address.substr(colon + 1), &result.port) || result.port < 0 || result.port > 65535) {
    return bad("has no port from 0 to 65535");
  }
  if (!result.host.empty() && result.host.front() == '[') {
    if (result.host.back() != ']') return bad("has an unclosed bracket");
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return bad("has an IPv6 address without brackets");
  }
  if (result.host.empty()) return bad("has no host");
  return result;
}

absl::Status CheckCanListen(const std::string& address) {
  EK_ASSIGN_OR_RETURN(SocketAddress target, ParseSocketAddress(address));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int failure = getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &found);
  if (failure != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("[listen] ", address, ": host ", target.host, " is unknown (", gai_strerror(failure), ")"));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  bool bound = false;
  int error = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    int result = TryBind(*info);
    if (result == EADDRINUSE) {
      return absl::UnavailableError(absl::StrCat("[listen] ", address, ": port ", target.port, " is in use"));
    }
    if (result == 0) bound = true;
    if (result != 0) error = result;
  }
  if (bound) return absl::OkStatus();  // a family that this machine lacks is no obstacle
  return absl::InvalidArgumentError(absl::StrCat("[listen] ", address, ": cannot be bound (", std::strerror(error),
                                                 "); give an address of this machine"));
}

}  // namespace evenkeel
