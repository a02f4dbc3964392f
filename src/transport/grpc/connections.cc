#include "transport/grpc/connections.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "transport/grpc/address.h"
#include "transport/grpc/socket_options.h"

namespace evenkeel {
namespace {

constexpr int kMaxFrameBytes = 4 << 20;
constexpr int kReadChunkBytes = 1 << 20;

int MaxMessage(const GrpcOptions& options) {
  return static_cast<int>(std::min<std::int64_t>(options.max_message_bytes, std::numeric_limits<int>::max()));
}

int KeepaliveMs(const GrpcOptions& options) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(options.keepalive).count());
}

// Alike on both sides. The flow-control window is left to gRPC's bandwidth probe: a fixed one is slower.
grpc::ChannelArguments CommonArguments(const GrpcOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(MaxMessage(options));
  arguments.SetMaxSendMessageSize(MaxMessage(options));
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, KeepaliveMs(options));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KeepaliveMs(options));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (grpc_socket_mutator* mutator = NewBulkSocketMutator()) arguments.SetSocketMutator(mutator);
  return arguments;
}

class ArgumentsOption final : public grpc::ServerBuilderOption {
 public:
  explicit ArgumentsOption(grpc::ChannelArguments arguments) : arguments_(std::move(arguments)) {}
  void UpdateArguments(grpc::ChannelArguments* arguments) override { *arguments = arguments_; }
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}

 private:
  grpc::ChannelArguments arguments_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const GrpcOptions& options) {
  grpc::ChannelArguments arguments = CommonArguments(options);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a cluster's own traffic
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", address), grpc::InsecureChannelCredentials(), arguments);
}

absl::StatusOr<ServerAndPort> StartServer(const std::string& address, grpc::CallbackGenericService* service,
                                          const GrpcOptions& options) {
  EK_RETURN_IF_ERROR(CheckCanListen(address));
  grpc::ChannelArguments arguments = CommonArguments(options);
  arguments.SetInt(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error
  arguments.SetInt(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, KeepaliveMs(options) / 2);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<ArgumentsOption>(std::move(arguments)));
  builder.SetMaxReceiveMessageSize(MaxMessage(options));
  builder.SetMaxSendMessageSize(MaxMessage(options));
  builder.RegisterCallbackGenericService(service);
  ServerAndPort result;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &result.port);
  result.server = builder.BuildAndStart();
  if (result.server == nullptr || result.port == 0) {
    return absl::UnavailableError(absl::StrCat("[listen] ", address, ": gRPC could not serve there"));
  }
  return result;
}

}  // namespace evenkeel
