// TCP options of bulk connections.
#pragma once

#include <grpcpp/support/channel_arguments.h>

namespace evenkeel {

// A new mutator that asks for cubic congestion control on every socket, or null where gRPC's version is not known to
// take it: bbr, the default of some systems, halves large transfers over the loopback. The taker owns it.
grpc_socket_mutator* NewBulkSocketMutator();

}  // namespace evenkeel
