#include "worker/server_link.h"

#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(20);
constexpr Duration kLongestDelay = std::chrono::seconds(1);
constexpr Duration kConnectTimeout = std::chrono::seconds(5);

}  // namespace

// Calls arrive while the link lives: its destructor closes the stream and waits for a call in progress.
struct ServerLink::Handler : StreamHandler {
  Handler(ServerLink* l, std::weak_ptr<int> a, std::uint64_t n) : link(l), alive(std::move(a)), attempt(n) {}
  void OnMessage(Stream&, Message message, const PayloadIn& payload) override {
    if (auto held = alive.lock()) link->OnMessage(attempt, std::move(message), payload);
  }
  void OnClosed(Stream&, const absl::Status& status) override {
    if (auto held = alive.lock()) link->OnClosed(attempt, status);
  }
  ServerLink* link;
  std::weak_ptr<int> alive;
  std::uint64_t attempt;
};

ServerLink::ServerLink(std::string server, std::string address, std::string worker, Transport& transport,
                       const Clock& clock, Callbacks callbacks)
    : server_(std::move(server)),
      address_(std::move(address)),
      worker_(std::move(worker)),
      transport_(transport),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      backoff_(kFirstDelay, kLongestDelay, HashName(server_ + worker_)),
      next_attempt_(clock.Now()),
      down_since_(clock.Now()) {}

ServerLink::~ServerLink() {
  Close();
  // A handler's call holds a reference while it runs; the last one gone, none can start.
  std::weak_ptr<int> calls = alive_;
  alive_.reset();
  while (!calls.expired()) std::this_thread::yield();
}

void ServerLink::Close() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    up_ = false;
    next_attempt_ = kNever;
    ++attempt_;
    stream = std::exchange(stream_, nullptr);
  }
  if (stream) stream->Close();
}

void ServerLink::SetLayout(LayoutNumber layout) {
  MutexLock lock(mutex_);
  layout_ = layout;
}

// The session may have heard of another layout already than the one that the caller stages and pulls in.
Envelope ServerLink::MakeEnvelope() const {
  Envelope envelope = callbacks_.envelope();
  MutexLock lock(mutex_);
  envelope.layout = layout_;
  return envelope;
}

void ServerLink::Poll() {
  std::uint64_t number;
  {
    MutexLock lock(mutex_);
    if (closed_ || next_attempt_ > clock_.Now()) return;
    next_attempt_ = kNever;
    number = ++attempt_;
  }
  auto handler = std::make_shared<Handler>(this, alive_, number);
  std::shared_ptr<Stream> stream = transport_.Connect(Service::kParameterServer, address_, handler, kConnectTimeout);
  {
    MutexLock lock(mutex_);
    if (attempt_ == number) stream_ = stream;
  }
  (void)stream->Send(Message{MakeEnvelope(), Hello{worker_}});  // OnClosed tells when it fails
}

TimePoint ServerLink::NextAttempt() const {
  MutexLock lock(mutex_);
  return next_attempt_;
}

bool ServerLink::up() const {
  MutexLock lock(mutex_);
  return up_;
}

TimePoint ServerLink::down_since() const {
  MutexLock lock(mutex_);
  return up_ || closed_ ? kNever : down_since_;
}

std::string ServerLink::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

std::string ServerLink::way() const {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    if (up_) stream = stream_;
  }
  return stream ? stream->way() : "";
}

bool ServerLink::Send(Body body, PayloadOut payload) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    if (!up_) return false;
    stream = stream_;
  }
  return stream->Send(Message{MakeEnvelope(), std::move(body)}, std::move(payload)).ok();
}

void ServerLink::OnMessage(std::uint64_t attempt, Message message, const PayloadIn& payload) {
  std::shared_ptr<Stream> give_up;
  bool came_up = false;
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_ || closed_) return;
    if (std::holds_alternative<HelloAck>(message.body)) {
      up_ = came_up = true;
      backoff_.Reset();
    } else if (!up_) {
      // Hello was refused: now, or for good.
      const auto* refuse = std::get_if<Refuse>(&message.body);
      if (refuse == nullptr) return;
      // A new server may have heard of a restarted chief's term before this worker has.
      if (refuse->reason == RefuseReason::kRetry || refuse->reason == RefuseReason::kStaleTerm) {
        last_error_ = refuse->message;
        give_up = std::exchange(stream_, nullptr);
        ++attempt_;
        next_attempt_ = clock_.Now() + backoff_.Next();
      } else {
        const std::string text = absl::StrCat(server_, " refused (", ToString(refuse->reason), "): ", refuse->message);
        refused = refuse->reason == RefuseReason::kStaleIncarnation ? absl::FailedPreconditionError(text)
                                                                    : absl::PermissionDeniedError(text);
      }
    }
  }
  if (give_up) give_up->Close();
  if (came_up) return callbacks_.on_up();
  if (!refused.ok()) return callbacks_.on_refused(refused);
  if (give_up) return callbacks_.on_down();
  callbacks_.on_message(std::move(message), payload);
}

void ServerLink::OnClosed(std::uint64_t attempt, const absl::Status& status) {
  bool was_up = false;
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_ || closed_) return;
    was_up = std::exchange(up_, false);
    stream_.reset();
    if (was_up) down_since_ = clock_.Now();
    last_error_ = std::string(status.message());
    next_attempt_ = clock_.Now() + backoff_.Next();
  }
  if (was_up)
    LogInfo(absl::StrCat("the stream to ", server_, " at ", address_,
                         " broke: ", status.ok() ? "it was closed there" : status.message()));
  callbacks_.on_down();
}

}  // namespace evenkeel
