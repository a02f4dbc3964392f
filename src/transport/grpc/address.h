// "host:port", as sockets take it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace evenkeel {

struct SocketAddress {
  std::string host;  // without brackets
  int port = 0;
};

// IPv6 addresses stand in brackets. Errors: kInvalidArgument shows the address.
absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address);

// Whether every address that the host stands for can be bound. gRPC is content with one of them, and keeps the reason
// for itself. Errors: kUnavailable "port 2222 is in use"; kInvalidArgument if the host is unknown or not of this
// machine.
absl::Status CheckCanListen(const std::string& address);

}  // namespace evenkeel
