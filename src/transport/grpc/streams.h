// Streams over gRPC's callback API.
//
// A stream issues operations (write, cancel) from any thread, never under its lock. Each is counted in busy_ from
// before it is issued until it is done or, for a cancel, issued; the call is ended (the server's Finish, the client's
// hold) only when none is, and after that no operation is issued. gRPC calls OnDone only after the end, so an operation
// never meets a call that is gone, and never while OnReadDone runs, so the handler's calls come one at a time.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/transport/transports.h"
#include "transport/open_streams.h"

namespace evenkeel {

class GrpcStream;

using StreamRegistry = OpenStreams<GrpcStream>;

// What a client stream needs of gRPC, to be destroyed together.
struct Connection {
  Connection(const std::string& address, const GrpcOptions& options);
  const std::shared_ptr<grpc::Channel> channel;
  grpc::GenericStub stub;
  grpc::ClientContext context;
};

// Destroys connections on a thread of its own: the last channel to go joins gRPC's callback threads, so it must not go
// on one of them. Thread-safe.
class ConnectionReaper {
 public:
  ConnectionReaper();
  ~ConnectionReaper();  // when all are destroyed
  void Take(std::unique_ptr<Connection> connection);

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// What client and server sides share.
class GrpcStream : public Stream, public std::enable_shared_from_this<GrpcStream> {
 public:
  GrpcStream(std::string peer, const GrpcOptions& options, std::shared_ptr<StreamRegistry> registry)
      : peer_(std::move(peer)), options_(options), registry_(std::move(registry)) {}

  absl::Status Send(Message message, PayloadOut payload) override;
  void Close() override;
  std::string peer() const override { return peer_; }
  std::string way() const override { return "grpc"; }

  // Ends the stream now; OnClosed gets `reason` unless an earlier one is known.
  void Cancel(absl::Status reason);

 protected:
  // The call's operations; each is issued at most once at a time.
  virtual void IssueRead(grpc::ByteBuffer* buffer) = 0;
  virtual void IssueWrite(const grpc::ByteBuffer* buffer) = 0;
  virtual void IssueCancel() = 0;
  virtual void IssueEnd(const absl::Status& status) = 0;
  // After Close, when all is written. Ends in WriteDone unless EndsByItself().
  virtual void IssueHalfClose() = 0;
  // The call is over; gRPC's part of it may go.
  virtual void ReleaseCall() {}
  // Whether this side ends the call once it has nothing more to say; else only the peer's end does.
  virtual bool EndsByItself() const = 0;

  // Begins to read and write. Before it nothing is issued.
  void Begin(std::shared_ptr<StreamHandler> handler);
  // Arms the deadline after which Cancel(reason) is called, unless another one replaces it or the end comes first.
  void Arm(Duration timeout, absl::Status reason);

  // gRPC's reactions.
  void Connected();
  void ReadDone(bool ok);
  void WriteDone(bool ok);
  void Broken();
  void Done(const absl::Status& status);

  const std::string peer_;
  const GrpcOptions options_;

 private:
  // Issues what the state asks for, until it asks for nothing.
  void Pump();
  void DropQueue(std::deque<grpc::ByteBuffer>& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<StreamRegistry> registry_;
  std::shared_ptr<StreamHandler> handler_;  // used by reactions only
  grpc::ByteBuffer incoming_;               // of the read that is out

  Mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_;  // of the write that is out
  std::int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t outgoing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // Close was called, or the stream broke
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more can be written
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;   // the end is issued
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // not ok: why this side ended it
  std::shared_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

class ClientStream final : public GrpcStream, public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `reaper` outlives the call.
  ClientStream(const std::string& address, const GrpcOptions& options, std::shared_ptr<StreamRegistry> registry,
               ConnectionReaper& reaper);
  void Start(const std::string& method, std::shared_ptr<StreamHandler> handler, Duration timeout);

 private:
  void IssueRead(grpc::ByteBuffer* buffer) override { StartRead(buffer); }
  void IssueWrite(const grpc::ByteBuffer* buffer) override { StartWrite(buffer); }
  void IssueCancel() override { connection_->context.TryCancel(); }
  void IssueEnd(const absl::Status&) override { RemoveHold(); }
  void IssueHalfClose() override { StartWritesDone(); }
  bool EndsByItself() const override { return false; }

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override { ReadDone(ok); }
  void OnWriteDone(bool ok) override { WriteDone(ok); }
  void OnWritesDoneDone(bool ok) override { WriteDone(ok); }
  void OnDone(const grpc::Status& status) override;
  void ReleaseCall() override { reaper_.Take(std::move(connection_)); }

  ConnectionReaper& reaper_;
  std::unique_ptr<Connection> connection_;
};

class ServerStream final : public GrpcStream, public grpc::ServerGenericBidiReactor {
 public:
  ServerStream(grpc::GenericCallbackServerContext* context, const GrpcOptions& options,
               std::shared_ptr<StreamRegistry> registry)
      : GrpcStream(context->peer(), options, std::move(registry)), context_(context) {}
  void Start(std::shared_ptr<StreamHandler> handler);

 private:
  void IssueRead(grpc::ByteBuffer* buffer) override { StartRead(buffer); }
  void IssueWrite(const grpc::ByteBuffer* buffer) override { StartWrite(buffer); }
  void IssueCancel() override { context_->TryCancel(); }
  void IssueEnd(const absl::Status& status) override;
  void IssueHalfClose() override {}
  bool EndsByItself() const override { return true; }

  void OnReadDone(bool ok) override { ReadDone(ok); }
  void OnWriteDone(bool ok) override { WriteDone(ok); }
  void OnCancel() override;
  void OnDone() override;

  grpc::GenericCallbackServerContext* const context_;  // valid until OnDone returns
  std::atomic<bool> cancelled_{false};
};

}  // namespace evenkeel
