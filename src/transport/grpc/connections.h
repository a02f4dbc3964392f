// The one place where gRPC channels and servers are made: credentials, limits and socket options.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {

// A channel with a TCP connection of its own.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const GrpcOptions& options);

struct ServerAndPort {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};
// Serves at once. `service` must outlive the server. Errors: as Transport::Listen.
absl::StatusOr<ServerAndPort> StartServer(const std::string& address, grpc::CallbackGenericService* service,
                                          const GrpcOptions& options);

}  // namespace evenkeel
