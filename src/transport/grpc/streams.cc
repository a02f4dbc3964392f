#include "transport/grpc/streams.h"

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "transport/grpc/codec.h"
#include "transport/grpc/connections.h"

namespace evenkeel {
namespace {

// A broken connection looks different on each side and in each phase; to roles it is one thing.
absl::Status FromGrpc(const grpc::Status& status, const std::string& peer) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      code = static_cast<absl::StatusCode>(status.error_code());
      break;
    default:
      break;
  }
  return absl::Status(code, absl::StrCat("[stream] ", peer, ": ", status.error_message()));
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace

// --------------------------------------------------------------------------------------------------- connections

Connection::Connection(const std::string& address, const GrpcOptions& options)
    : channel(MakeChannel(address, options)), stub(channel) {}

ConnectionReaper::ConnectionReaper() : thread_([this] { Run(); }) {}

ConnectionReaper::~ConnectionReaper() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void ConnectionReaper::Take(std::unique_ptr<Connection> connection) {
  MutexLock lock(mutex_);
  connections_.push_back(std::move(connection));
  changed_.NotifyAll();
}

void ConnectionReaper::Run() {
  bool stopping = false;
  while (!stopping) {
    std::vector<std::unique_ptr<Connection>> taken;
    MutexLock lock(mutex_);
    while (connections_.empty() && !stopping_) changed_.Wait(mutex_);
    taken.swap(connections_);
    stopping = stopping_;
  }
}

// ------------------------------------------------------------------------------------------------ the shared state

absl::Status GrpcStream::Send(Message message, PayloadOut payload) {
  grpc::ByteBuffer buffer = EncodePacket(message, std::move(payload));
  const auto bytes = static_cast<std::int64_t>(buffer.Length());
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (closing_ || broken_ || read_ended_ || ended_) {
      return absl::UnavailableError(absl::StrCat("[send] stream to ", peer_, " is closed"));
    }
    if (bytes > options_.max_message_bytes) {
      refused = absl::ResourceExhaustedError(absl::StrCat("[send] message of ", bytes, " bytes to ", peer_,
                                                          "; at most ", options_.max_message_bytes, " are allowed"));
    } else if (queued_bytes_ + bytes > options_.max_queued_bytes) {
      refused = absl::ResourceExhaustedError(absl::StrCat("[send] ", peer_, " reads too slowly: ", queued_bytes_,
                                                          " bytes queued, at most ", options_.max_queued_bytes));
    } else {
      queued_bytes_ += bytes;
      queue_.push_back(std::move(buffer));
    }
  }
  if (!refused.ok()) {
    Cancel(refused);
    return refused;
  }
  Pump();
  return absl::OkStatus();
}

void GrpcStream::Close() {
  {
    MutexLock lock(mutex_);
    if (closing_ || ended_) return;
    closing_ = true;
  }
  Arm(options_.close_timeout, absl::UnavailableError(absl::StrCat("[close] ", peer_, " did not end its side in time")));
  Pump();
}

void GrpcStream::Cancel(absl::Status reason) {
  std::deque<grpc::ByteBuffer> dropped;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    if (reason_.ok()) reason_ = std::move(reason);
    closing_ = broken_ = true;
    // A server that has no write out just finishes, which tells the peer the reason.
    cancel_wanted_ = writing_ || !EndsByItself();
    DropQueue(dropped);
  }
  Pump();
}

void GrpcStream::Begin(std::shared_ptr<StreamHandler> handler) {
  handler_ = std::move(handler);
  IssueRead(&incoming_);
  {
    MutexLock lock(mutex_);
    begun_ = true;
  }
  Pump();
}

void GrpcStream::DropQueue(std::deque<grpc::ByteBuffer>& dropped) {
  dropped.swap(queue_);
  queued_bytes_ = writing_ ? outgoing_bytes_ : 0;
}

void GrpcStream::Pump() {
  enum class Next { kNothing, kWrite, kHalfClose, kCancel, kEnd };
  bool issued = false;  // by the last round; its count is still to be given back
  while (true) {
    Next next = Next::kNothing;
    absl::Status status;
    {
      MutexLock lock(mutex_);
      if (issued) --busy_;
      issued = false;
      if (!begun_ || ended_) return;
      if (cancel_wanted_) {
        cancel_wanted_ = false;
        next = Next::kCancel;
      } else if (!writing_ && !broken_ && !queue_.empty()) {
        next = Next::kWrite;
        outgoing_ = std::move(queue_.front());
        queue_.pop_front();
        outgoing_bytes_ = static_cast<std::int64_t>(outgoing_.Length());
        writing_ = true;
      } else if (!writing_ && !broken_ && closing_ && !half_closed_ && !read_ended_) {
        next = Next::kHalfClose;
        half_closed_ = true;
        writing_ = !EndsByItself();
      } else if (!writing_ && busy_ == 0 && (read_ended_ || (EndsByItself() && (half_closed_ || broken_)))) {
        next = Next::kEnd;
        ended_ = true;
        status = reason_;
      }
      if (next == Next::kNothing) return;
      ++busy_;
      issued = true;
    }
    switch (next) {
      case Next::kWrite:
        IssueWrite(&outgoing_);
        break;
      case Next::kHalfClose:
        IssueHalfClose();
        break;
      case Next::kCancel:
        IssueCancel();
        break;
      case Next::kEnd:
        IssueEnd(status);
        return;  // the stream may be gone
      case Next::kNothing:
        break;
    }
  }
}

void GrpcStream::Arm(Duration timeout, absl::Status reason) {
  auto alarm = std::make_shared<grpc::Alarm>();
  std::weak_ptr<GrpcStream> weak = weak_from_this();
  auto deadline = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(timeout);
  alarm->Set(deadline, [weak, reason = std::move(reason)](bool expired) {
    if (!expired) return;
    if (std::shared_ptr<GrpcStream> stream = weak.lock()) stream->Cancel(reason);
  });
  // Known to other threads only now: an alarm must not be cancelled while it is being set. The last hold cancels it.
  MutexLock lock(mutex_);
  if (!ended_) alarm_.swap(alarm);
}

void GrpcStream::Connected() {
  std::shared_ptr<grpc::Alarm> alarm;
  {
    MutexLock lock(mutex_);
    if (!closing_) alarm = std::move(alarm_);  // else it is the closing's
  }
  if (alarm != nullptr) alarm->Cancel();
}

void GrpcStream::ReadDone(bool ok) {
  std::shared_ptr<GrpcStream> self = shared_from_this();
  if (ok) {
    bool deliver;
    {
      MutexLock lock(mutex_);
      deliver = reason_.ok();
    }
    absl::Status status;
    if (deliver) {
      status = DecodePacket(incoming_, [&](Message message, const PayloadIn& payload) {
        handler_->OnMessage(*this, std::move(message), payload);
      });
    }
    incoming_.Clear();
    if (status.ok()) {
      IssueRead(&incoming_);
      return;
    }
    Cancel(absl::Status(status.code(), absl::StrCat("[stream] ", peer_, ": ", status.message())));
  }
  std::deque<grpc::ByteBuffer> dropped;
  {
    MutexLock lock(mutex_);
    read_ended_ = true;
    if (!EndsByItself()) DropQueue(dropped);  // the server ended the call: nobody reads what is still queued
  }
  Close();  // a server's queue goes out, within the bound
  Pump();
}

void GrpcStream::WriteDone(bool ok) {
  std::shared_ptr<GrpcStream> self = shared_from_this();
  std::deque<grpc::ByteBuffer> dropped;
  outgoing_.Clear();
  {
    MutexLock lock(mutex_);
    writing_ = false;
    queued_bytes_ -= outgoing_bytes_;
    outgoing_bytes_ = 0;
    if (!ok) {
      broken_ = true;
      DropQueue(dropped);
    }
  }
  Pump();
}

void GrpcStream::Broken() {
  std::shared_ptr<GrpcStream> self = shared_from_this();
  std::deque<grpc::ByteBuffer> dropped;
  {
    MutexLock lock(mutex_);
    broken_ = true;
    DropQueue(dropped);
  }
  Pump();
}

void GrpcStream::Done(const absl::Status& status) {
  std::shared_ptr<GrpcStream> self = shared_from_this();
  absl::Status reason;
  std::deque<grpc::ByteBuffer> dropped;
  std::shared_ptr<grpc::Alarm> alarm;
  {
    MutexLock lock(mutex_);
    alarm = std::move(alarm_);
    reason = reason_.ok() ? status : reason_;
    closing_ = broken_ = ended_ = true;
    DropQueue(dropped);
  }
  if (alarm != nullptr) alarm->Cancel();
  // The handler often holds the stream: dropping it here breaks the circle.
  std::exchange(handler_, nullptr)->OnClosed(*this, reason);
  ReleaseCall();
  registry_->Remove(self);
}

// -------------------------------------------------------------------------------------------------------- client

ClientStream::ClientStream(const std::string& address, const GrpcOptions& options,
                           std::shared_ptr<StreamRegistry> registry, ConnectionReaper& reaper)
    : GrpcStream(address, options, std::move(registry)),
      reaper_(reaper),
      connection_(std::make_unique<Connection>(address, options)) {}

void ClientStream::Start(const std::string& method, std::shared_ptr<StreamHandler> handler, Duration timeout) {
  connection_->stub.PrepareBidiStreamingCall(&connection_->context, method, grpc::StubOptions(), this);
  AddHold();
  auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  Arm(timeout, absl::UnavailableError(absl::StrCat("[connect] no answer from ", peer_, " within ", ms, " ms")));
  Begin(std::move(handler));
  StartCall();
}

void ClientStream::OnReadInitialMetadataDone(bool ok) {
  if (ok) Connected();
}

void ClientStream::OnDone(const grpc::Status& status) { Done(FromGrpc(status, peer_)); }

// -------------------------------------------------------------------------------------------------------- server

void ServerStream::Start(std::shared_ptr<StreamHandler> handler) {
  StartSendInitialMetadata();  // tells the client that it is connected
  Begin(std::move(handler));
}

void ServerStream::IssueEnd(const absl::Status& status) { Finish(ToGrpc(status)); }

void ServerStream::OnCancel() {
  cancelled_ = true;
  Broken();
}

void ServerStream::OnDone() {
  Done(cancelled_ ? absl::UnavailableError(absl::StrCat("[stream] ", peer_, " went away")) : absl::OkStatus());
}

}  // namespace evenkeel
