#include "transport/grpc/grpc_transport.h"

#include <grpc/support/log.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "transport/grpc/connections.h"
#include "transport/grpc/streams.h"

namespace evenkeel {
namespace {

constexpr std::size_t kMaxAnswerBytes = 64 << 10;
constexpr std::size_t kAskersKept = 256;  // connections that wait for the next question

const char* MethodOf(Service service) {
  return service == Service::kChief ? "/evenkeel.v1.Chief/Session" : "/evenkeel.v1.ParameterServer/Session";
}

const char* OfferMethodOf(Service service) {
  return service == Service::kChief ? "/evenkeel.v1.Chief/OfferWays" : "/evenkeel.v1.ParameterServer/OfferWays";
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

absl::StatusOr<std::vector<Way>> WaysOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (buffer.Length() > kMaxAnswerBytes || !buffer.Dump(&slices).ok()) {
    return absl::InvalidArgumentError(absl::StrCat("[ways] a message of ", buffer.Length(), " bytes"));
  }
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return DecodeWays(AsBytes(bytes));
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// One question about ways and its answer.
class WaysReactor final : public grpc::ServerGenericBidiReactor {
 public:
  explicit WaysReactor(const OfferWays& offer) : offer_(offer) { StartRead(&question_); }

  void OnReadDone(bool ok) override {
    absl::StatusOr<std::vector<Way>> asked = absl::UnavailableError("[ways] no question came");
    if (ok) asked = WaysOf(question_);
    if (!asked.ok()) {
      Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(asked.status().message())));
      return;
    }
    answer_ = BufferOf(EncodeWays(offer_(*asked)));
    StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  const OfferWays& offer_;
  grpc::ByteBuffer question_, answer_;
};

class GrpcService final : public grpc::CallbackGenericService {
 public:
  // `offer`: may be empty.
  GrpcService(Service service, Acceptor acceptor, OfferWays offer, const GrpcOptions& options)
      : service_(service), acceptor_(std::move(acceptor)), offer_(std::move(offer)), options_(options) {}

  StreamRegistry& streams() { return *streams_; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    if (offer_ && context->method() == OfferMethodOf(service_)) return new WaysReactor(offer_);
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
  const OfferWays offer_;
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

class GrpcTransport final : public OfferingTransport {
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
    return ListenOffering(service, address, std::move(acceptor), nullptr);
  }

  absl::StatusOr<std::unique_ptr<Listener>> ListenOffering(Service service, const std::string& address,
                                                           Acceptor acceptor, OfferWays offer) override {
    auto implementation = std::make_unique<GrpcService>(service, std::move(acceptor), std::move(offer), options_);
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

  absl::StatusOr<std::vector<Way>> AskForWays(Service service, const std::string& address, const std::vector<Way>& ways,
                                              TimePoint deadline) override {
    const grpc::ByteBuffer question = BufferOf(EncodeWays(ways));
    grpc::ByteBuffer answer;
    std::shared_ptr<grpc::Channel> channel = KeptAsker(address);
    const bool kept = channel != nullptr;
    if (!kept) channel = MakeChannel(address, options_);
    grpc::Status status = Ask(channel, OfferMethodOf(service), question, answer, deadline);
    if (kept && status.error_code() == grpc::StatusCode::UNAVAILABLE) {  // the peer that it led to has gone
      channel = MakeChannel(address, options_);
      status = Ask(channel, OfferMethodOf(service), question, answer, deadline);
    }
    KeepAsker(address, status.ok() ? channel : nullptr);
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return std::vector<Way>();
    if (!status.ok()) return absl::UnavailableError(absl::StrCat("[ways] ", address, ": ", status.error_message()));
    return WaysOf(answer);
  }

  void EndQuestions() override {
    MutexLock lock(questions_mutex_);
    questions_ended_ = true;
    for (grpc::ClientContext* context : questions_) context->TryCancel();
  }

 private:
  grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                   const grpc::ByteBuffer& question, grpc::ByteBuffer& answer, TimePoint deadline) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::Real().Now()));
    std::optional<grpc::Status> status;
    {
      MutexLock lock(questions_mutex_);
      if (questions_ended_) return {grpc::StatusCode::CANCELLED, "the transport was taken down"};
      questions_.insert(&context);
    }
    grpc::GenericStub(channel).UnaryCall(&context, method, grpc::StubOptions(), &question, &answer,
                                         [&](grpc::Status s) {
                                           MutexLock lock(questions_mutex_);
                                           status = std::move(s);
                                           answered_.NotifyAll();
                                         });
    MutexLock lock(questions_mutex_);
    while (!status) answered_.Wait(questions_mutex_);  // the call has a deadline
    questions_.erase(&context);
    return *std::move(status);
  }

  std::shared_ptr<grpc::Channel> KeptAsker(const std::string& address) {
    MutexLock lock(questions_mutex_);
    const auto kept = askers_.find(address);
    return kept == askers_.end() ? nullptr : kept->second;
  }

  // Null: none leads there.
  void KeepAsker(const std::string& address, std::shared_ptr<grpc::Channel> channel) {
    std::shared_ptr<grpc::Channel> former;  // goes outside the lock
    MutexLock lock(questions_mutex_);
    if (auto kept = askers_.find(address); kept != askers_.end()) {
      former = std::exchange(kept->second, channel);
      if (channel == nullptr) askers_.erase(kept);
    } else if (channel != nullptr && askers_.size() < kAskersKept) {
      askers_.emplace(address, std::move(channel));
    }
  }

  Mutex questions_mutex_;
  CondVar answered_;
  bool questions_ended_ ABSL_GUARDED_BY(questions_mutex_) = false;
  std::set<grpc::ClientContext*> questions_ ABSL_GUARDED_BY(questions_mutex_);
  // By address, of questions that were answered: a fresh connection takes most of the time that one takes, and who
  // comes again (a new layout, a stream that broke) is waited for.
  std::map<std::string, std::shared_ptr<grpc::Channel>> askers_ ABSL_GUARDED_BY(questions_mutex_);
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

std::unique_ptr<OfferingTransport> MakeOfferingTransport(const GrpcOptions& options) {
  static const bool forwarded = [] {
    gpr_set_log_function(&ForwardGrpcLog);
    return true;
  }();
  (void)forwarded;
  return std::make_unique<GrpcTransport>(options);
}

std::unique_ptr<Transport> MakeGrpcTransport(const GrpcOptions& options) { return MakeOfferingTransport(options); }

}  // namespace evenkeel
