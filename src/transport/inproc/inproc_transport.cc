// One dispatcher thread runs all handlers, from one queue of tasks in order; so each stream keeps its order, and calls
// of a handler come one at a time.
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

class InprocStream;
using StreamPtr = std::shared_ptr<InprocStream>;

// A message's weight in the queue besides its payload.
constexpr std::int64_t kMessageBytes = 256;
constexpr int kFirstFreePort = 49152;

struct Acceptance {
  Acceptor acceptor;
  std::set<StreamPtr> open;  // server ends
};

// What a transport, its listeners and its streams share. All their state is guarded by its one mutex.
class Switch : public std::enable_shared_from_this<Switch> {
 public:
  explicit Switch(std::int64_t max_queued_bytes) : max_queued_bytes_(max_queued_bytes) {}

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  // Closes every stream, runs what is queued, joins.
  void Stop();

  absl::StatusOr<int> Listen(Service service, std::string& address, std::shared_ptr<Acceptance> acceptance);
  void StopListening(Service service, const std::string& address, const std::shared_ptr<Acceptance>& acceptance);
  StreamPtr Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler);

  absl::Status Send(const StreamPtr& from, Message message, PayloadOut payload);
  void Close(const StreamPtr& stream);

 private:
  using Key = std::pair<Service, std::string>;
  using Task = std::function<void()>;

  void Run();
  void Push(Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tasks, on the dispatcher thread:
  void DoConnect(const Key& key, const StreamPtr& client);
  void DoDeliver(const StreamPtr& from, Message& message, PayloadOut& payload, std::int64_t bytes);
  void DoClose(const StreamPtr& stream, const absl::Status& status);
  // OnClosed, once.
  void Finish(const StreamPtr& stream, const absl::Status& status);

  const std::int64_t max_queued_bytes_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int next_port_ ABSL_GUARDED_BY(mutex_) = kFirstFreePort;
  std::map<Key, std::shared_ptr<Acceptance>> listeners_ ABSL_GUARDED_BY(mutex_);
  std::set<StreamPtr> open_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

class InprocStream final : public Stream, public std::enable_shared_from_this<InprocStream> {
 public:
  InprocStream(std::shared_ptr<Switch> owner, std::string peer_name)
      : owner_(std::move(owner)), peer_name_(std::move(peer_name)) {}

  absl::Status Send(Message message, PayloadOut payload) override {
    return owner_->Send(shared_from_this(), std::move(message), std::move(payload));
  }
  void Close() override { owner_->Close(shared_from_this()); }
  std::string peer() const override { return peer_name_; }
  std::string way() const override { return "inproc"; }

 private:
  friend class Switch;
  const std::shared_ptr<Switch> owner_;
  const std::string peer_name_;
  // Guarded by the switch's mutex:
  StreamPtr other_;
  std::shared_ptr<Acceptance> acceptance_;  // server ends
  std::int64_t queued_bytes_ = 0;
  bool closing_ = false;  // Send refuses
  bool done_ = false;     // OnClosed is given or being given
  // Used by the dispatcher thread only, once the stream is known to it:
  std::shared_ptr<StreamHandler> handler_;
};

void Switch::Push(Task task) {
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
}

void Switch::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) changed_.Wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void Switch::Stop() {
  {
    MutexLock lock(mutex_);
    for (const StreamPtr& stream : open_) {
      stream->closing_ = true;
      Push([this, stream] { Finish(stream, absl::UnavailableError("[stream] the transport was taken down")); });
    }
    listeners_.clear();
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

absl::StatusOr<int> Switch::Listen(Service service, std::string& address, std::shared_ptr<Acceptance> acceptance) {
  MutexLock lock(mutex_);
  int port = 0;
  std::size_t colon = address.rfind(':');
  if (colon != std::string::npos && absl::SimpleAtoi(address.substr(colon + 1), &port) && port == 0) {
    port = next_port_++;
    address = absl::StrCat(address.substr(0, colon), ":", port);
  }
  if (stopping_) return absl::UnavailableError("[listen] the transport was taken down");
  if (!listeners_.emplace(Key(service, address), std::move(acceptance)).second) {
    return absl::UnavailableError(absl::StrCat("[listen] ", address, ": port ", port, " is in use"));
  }
  return port;
}

void Switch::StopListening(Service service, const std::string& address, const std::shared_ptr<Acceptance>& acceptance) {
  std::vector<StreamPtr> open;
  {
    MutexLock lock(mutex_);
    auto found = listeners_.find(Key(service, address));
    if (found != listeners_.end() && found->second == acceptance) listeners_.erase(found);
    open.assign(acceptance->open.begin(), acceptance->open.end());
  }
  for (const StreamPtr& stream : open) Close(stream);
  open.clear();
  MutexLock lock(mutex_);
  while (!acceptance->open.empty()) changed_.Wait(mutex_);
}

StreamPtr Switch::Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler) {
  auto client = std::make_shared<InprocStream>(shared_from_this(), address);
  client->handler_ = std::move(handler);
  MutexLock lock(mutex_);
  open_.insert(client);
  Push([this, key = Key(service, address), client] { DoConnect(key, client); });
  return client;
}

absl::Status Switch::Send(const StreamPtr& from, Message message, PayloadOut payload) {
  MutexLock lock(mutex_);
  if (from->closing_ || from->done_) {
    return absl::UnavailableError(absl::StrCat("[send] stream to ", from->peer_name_, " is closed"));
  }
  const std::int64_t bytes = kMessageBytes + static_cast<std::int64_t>(payload.bytes.size());
  if (from->queued_bytes_ + bytes > max_queued_bytes_) {
    absl::Status status = absl::ResourceExhaustedError(absl::StrCat("[send] ", from->peer_name_,
                                                                    " reads too slowly: ", from->queued_bytes_,
                                                                    " bytes queued, at most ", max_queued_bytes_));
    from->closing_ = true;
    Push([this, from, status] { DoClose(from, status); });
    return status;
  }
  from->queued_bytes_ += bytes;
  Push([this, from, message = std::move(message), payload = std::move(payload), bytes]() mutable {
    DoDeliver(from, message, payload, bytes);
  });
  return absl::OkStatus();
}

void Switch::Close(const StreamPtr& stream) {
  MutexLock lock(mutex_);
  if (stream->closing_ || stream->done_) return;
  stream->closing_ = true;
  Push([this, stream] { DoClose(stream, absl::OkStatus()); });
}

void Switch::DoConnect(const Key& key, const StreamPtr& client) {
  std::shared_ptr<Acceptance> acceptance;
  StreamPtr server;
  {
    MutexLock lock(mutex_);
    auto found = listeners_.find(key);
    if (found != listeners_.end()) {
      acceptance = found->second;
      server = std::make_shared<InprocStream>(shared_from_this(), absl::StrCat("client of ", key.second));
      server->acceptance_ = acceptance;
      server->other_ = client;
      client->other_ = server;
      acceptance->open.insert(server);
      open_.insert(server);
    }
  }
  if (server == nullptr) {
    Finish(client, absl::UnavailableError(absl::StrCat("[connect] nobody listens at ", key.second)));
    return;
  }
  server->handler_ = acceptance->acceptor(server);
  if (server->handler_ == nullptr) {
    absl::Status unwanted = absl::UnavailableError("the stream is not wanted");
    Finish(server, unwanted);
    Finish(client, unwanted);
  }
}

void Switch::DoDeliver(const StreamPtr& from, Message& message, PayloadOut& payload, std::int64_t bytes) {
  StreamPtr to;
  {
    MutexLock lock(mutex_);
    if (from->other_ != nullptr && !from->other_->done_) to = from->other_;
  }
  if (to != nullptr) {
    std::span<const std::byte> piece = payload.bytes;
    PayloadIn in = piece.empty() ? PayloadIn() : PayloadIn(std::span<const std::span<const std::byte>>(&piece, 1));
    to->handler_->OnMessage(*to, std::move(message), in);
  }
  payload = {};
  MutexLock lock(mutex_);
  from->queued_bytes_ -= bytes;
}

void Switch::DoClose(const StreamPtr& stream, const absl::Status& status) {
  StreamPtr other;
  {
    MutexLock lock(mutex_);
    other = stream->other_;
  }
  if (other != nullptr) {
    Finish(other, status.ok() ? absl::OkStatus() : absl::UnavailableError("[stream] the peer broke it off"));
  }
  Finish(stream, status);
}

void Switch::Finish(const StreamPtr& stream, const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (stream->done_) return;
    stream->done_ = stream->closing_ = true;
  }
  if (std::shared_ptr<StreamHandler> handler = std::move(stream->handler_)) handler->OnClosed(*stream, status);
  StreamPtr other;  // dropped outside the lock; breaks the circle of the two ends
  MutexLock lock(mutex_);
  other = std::move(stream->other_);
  if (stream->acceptance_ != nullptr) stream->acceptance_->open.erase(stream);
  stream->acceptance_ = nullptr;
  open_.erase(stream);
  changed_.NotifyAll();
}

class InprocListener final : public Listener {
 public:
  InprocListener(std::shared_ptr<Switch> owner, Service service, std::string address, int port,
                 std::shared_ptr<Acceptance> acceptance)
      : owner_(std::move(owner)),
        service_(service),
        address_(std::move(address)),
        port_(port),
        acceptance_(std::move(acceptance)) {}
  ~InprocListener() override { Shutdown(Duration::zero()); }

  int port() const override { return port_; }
  // What is queued is delivered at once, whatever the grace.
  void Shutdown(Duration) override { owner_->StopListening(service_, address_, acceptance_); }

 private:
  const std::shared_ptr<Switch> owner_;
  const Service service_;
  const std::string address_;
  const int port_;
  const std::shared_ptr<Acceptance> acceptance_;
};

class InprocTransport final : public Transport {
 public:
  explicit InprocTransport(std::int64_t max_queued_bytes) : switch_(std::make_shared<Switch>(max_queued_bytes)) {
    switch_->Start();
  }
  ~InprocTransport() override { switch_->Stop(); }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(Service service, const std::string& address,
                                                   Acceptor acceptor) override {
    if (address.empty()) return absl::InvalidArgumentError("[listen] the address is empty");
    auto acceptance = std::make_shared<Acceptance>();
    acceptance->acceptor = std::move(acceptor);
    std::string name = address;
    absl::StatusOr<int> port = switch_->Listen(service, name, acceptance);
    if (!port.ok()) return port.status();
    return std::make_unique<InprocListener>(switch_, service, std::move(name), *port, std::move(acceptance));
  }

  std::shared_ptr<Stream> Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler,
                                  Duration) override {
    return switch_->Connect(service, address, std::move(handler));
  }

 private:
  const std::shared_ptr<Switch> switch_;
};

}  // namespace

std::unique_ptr<Transport> MakeInprocTransport(std::int64_t max_queued_bytes) {
  return std::make_unique<InprocTransport>(max_queued_bytes);
}

}  // namespace evenkeel
