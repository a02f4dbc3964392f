#include <grpc/support/log.h>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "transport/grpc/connections.h"
#include "transport/grpc/streams.h"

namespace evenkeel {
namespace {

const char* MethodOf(Service service) {
  return service == Service::kChief ? "/evenkeel.v1.Chief/Session" : "/evenkeel.v1.ParameterServer/Session";
}

// Of a stream that the acceptor does not want.
class NoHandler final : public StreamHandler {
 public:
  void OnMessage(Stream&, Message, const PayloadIn&) override {}
  void OnClosed(Stream&, const absl::Status&) override {}
};

class Rejection final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Rejection(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

class GrpcService final : public grpc::CallbackGenericService {
 public:
  GrpcService(Service service, Acceptor acceptor, const GrpcOptions& options)
      : service_(service), acceptor_(std::move(acceptor)), options_(options) {}

  StreamRegistry& streams() { return *streams_; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    if (context->method() != MethodOf(service_)) {
      return new Rejection(grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                                        absl::StrCat("method ", context->method(), "; here is ", MethodOf(service_))));
    }
    auto stream = std::make_shared<ServerStream>(context, options_, streams_);
    if (!streams_->Add(stream)) {
      return new Rejection(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
    }
    std::shared_ptr<StreamHandler> handler = acceptor_(stream);
    const bool refused = handler == nullptr;
    if (refused) handler = std::make_shared<NoHandler>();
    stream->Start(std::move(handler));
    if (refused) stream->Cancel(absl::UnavailableError("the stream is not wanted"));
    return stream.get();
  }

 private:
  const Service service_;
  const Acceptor acceptor_;
  const GrpcOptions options_;
  const std::shared_ptr<StreamRegistry> streams_ = std::make_shared<StreamRegistry>();
};

class GrpcListener final : public Listener {
 public:
  GrpcListener(std::unique_ptr<GrpcService> service, ServerAndPort server)
      : service_(std::move(service)), server_(std::move(server)) {}
  ~GrpcListener() override { Shutdown(Duration::zero()); }

  int port() const override { return server_.port; }

  void Shutdown(Duration grace) override {
    MutexLock lock(mutex_);
    if (shut_down_) return;
    shut_down_ = true;
    service_->streams().Seal();
    for (const std::shared_ptr<GrpcStream>& stream : service_->streams().Snapshot()) stream->Close();
    // At the deadline gRPC cancels what is left.
    server_.server->Shutdown(std::chrono::system_clock::now() +
                             std::chrono::duration_cast<std::chrono::microseconds>(grace));
    service_->streams().WaitUntilEmpty();
  }

 private:
  const std::unique_ptr<GrpcService> service_;  // before the server, which uses it
  ServerAndPort server_;
  Mutex mutex_;  // held while one caller shuts down, so that others wait for it
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(const GrpcOptions& options) : options_(options) {}
  ~GrpcTransport() override {
    streams_->Seal();
    for (const std::shared_ptr<GrpcStream>& stream : streams_->Snapshot()) {
      stream->Cancel(absl::UnavailableError("[stream] the transport was taken down"));
    }
    streams_->WaitUntilEmpty();
  }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(Service service, const std::string& address,
                                                   Acceptor acceptor) override {
    auto implementation = std::make_unique<GrpcService>(service, std::move(acceptor), options_);
    EK_ASSIGN_OR_RETURN(ServerAndPort server, StartServer(address, implementation.get(), options_));
    return std::make_unique<GrpcListener>(std::move(implementation), std::move(server));
  }

  std::shared_ptr<Stream> Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler,
                                  Duration timeout) override {
    auto stream = std::make_shared<ClientStream>(address, options_, streams_, reaper_);
    EK_CHECK(streams_->Add(stream));
    stream->Start(MethodOf(service), std::move(handler), timeout);
    return stream;
  }

 private:
  const GrpcOptions options_;
  const std::shared_ptr<StreamRegistry> streams_ = std::make_shared<StreamRegistry>();
  ConnectionReaper reaper_;
};

// gRPC's own log lines join ours; its errors about single connections are no errors of the job.
void ForwardGrpcLog(gpr_log_func_args* args) {
  LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  Log(level, absl::StrCat("grpc: ", args->message));
}

}  // namespace

std::unique_ptr<Transport> MakeGrpcTransport(const GrpcOptions& options) {
  static const bool forwarded = [] {
    gpr_set_log_function(&ForwardGrpcLog);
    return true;
  }();
  (void)forwarded;
  return std::make_unique<GrpcTransport>(options);
}

}  // namespace evenkeel
