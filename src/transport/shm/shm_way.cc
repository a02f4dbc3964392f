// An offer names a unix socket in the abstract namespace, which goes with its process, and a token. Whoever connects
// there, as the same user, and shows the token in time, gets the rings' memory.
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/patience.h"
#include "evenkeel/core/status.h"
#include "transport/shm/channel.h"
#include "transport/shm/memory.h"
#include "transport/shm/stream.h"
#include "transport/shm/watcher.h"
#include "transport/side_way.h"

namespace evenkeel {
namespace shm {
namespace {

constexpr Duration kOfferLife = std::chrono::seconds(10);
constexpr std::size_t kMaxOffers = 256;
constexpr std::size_t kMaxStrangers = 256;  // connections that have not shown a token yet
constexpr std::size_t kSecretBytes = 16;
// Whoever attends has other things to do, however much comes.
constexpr Duration kLongestListening = std::chrono::milliseconds(1);

using Secret = std::array<std::byte, kSecretBytes>;

// The first record of each side.
struct Greeting {
  char magic[8] = {'e', 'v', 'e', 'n', 'k', 'e', 'e', 'l'};
  std::uint64_t version = 1;
  Secret token = {};
};

absl::StatusOr<Secret> NewSecret() {
  Secret secret;
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    return absl::UnavailableError(absl::StrCat("[shm] getrandom: ", std::strerror(errno)));
  }
  return secret;
}

std::string ToHex(const Secret& secret) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(secret.data()), secret.size()));
}

// A name of the abstract namespace.
struct SocketName {
  sockaddr_un address = {};
  socklen_t size = 0;
  explicit SocketName(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::string text = absl::StrCat("evenkeel-", name);
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

absl::Status SocketError(const char* what) {
  return absl::UnavailableError(absl::StrCat("[shm] ", what, ": ", std::strerror(errno)));
}

class ShmDoor final : public SideDoor {
 public:
  ShmDoor(Descriptor socket, std::string name, Acceptor acceptor, const ShmOptions& options)
      : socket_(std::move(socket)), name_(std::move(name)), acceptor_(std::move(acceptor)), options_(options) {}
  ~ShmDoor() override { Shutdown(Duration::zero()); }

  void Start() {
    MutexLock lock(mutex_);
    Listen();
  }

  absl::StatusOr<std::string> Offer() override {
    EK_ASSIGN_OR_RETURN(const Secret token, NewSecret());
    MutexLock lock(mutex_);
    const TimePoint now = Clock::Real().Now();
    std::erase_if(offers_, [now](const auto& offer) { return offer.second <= now; });
    if (shut_down_) return absl::UnavailableError("[shm] the listener is shutting down");
    if (offers_.size() >= kMaxOffers) {
      return absl::ResourceExhaustedError(absl::StrCat("[shm] ", kMaxOffers, " offers are open"));
    }
    offers_[token] = now + kOfferLife;
    return absl::StrCat(name_, ToHex(token));
  }

  void Shutdown(Duration grace) override {
    std::map<Watcher::Key, Descriptor> strangers;
    Watcher::Key listening = 0;
    {
      MutexLock lock(mutex_);
      shut_down_ = true;
      strangers.swap(strangers_);
      listening = std::exchange(listening_, 0);
    }
    watcher_.Remove(listening);
    for (const auto& [key, descriptor] : strangers) watcher_.Remove(key);
    strangers.clear();
    streams_->Seal();
    for (const auto& stream : streams_->Snapshot()) stream->Close();
    if (!streams_->WaitUntilEmpty(Clock::Real().Now() + grace)) {
      for (const auto& stream : streams_->Snapshot()) {
        stream->Cancel(absl::UnavailableError("[stream] the listener was shut down"));
      }
      (void)streams_->WaitUntilEmpty(kNever);
    }
  }

 private:
  void Listen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    listening_ = watcher_.Add(socket_.get(), true, kNever, [this](bool) { Accept(); });
  }

  // On the watcher's thread.
  void Accept() {
    Descriptor peer(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    MutexLock lock(mutex_);
    if (shut_down_) return;
    Listen();
    if (peer.get() < 0 || !CheckSameUser(peer.get()).ok() || strangers_.size() >= kMaxStrangers) return;
    auto key = std::make_shared<Watcher::Key>(0);
    const int socket = peer.get();
    *key = watcher_.Add(socket, true, Clock::Real().Now() + kOfferLife,
                        [this, key](bool in_time) { Greet(*key, in_time); });
    strangers_[*key] = std::move(peer);
  }

  void Greet(Watcher::Key key, bool in_time) {
    Descriptor peer;
    Greeting greeting;
    {
      MutexLock lock(mutex_);
      auto found = strangers_.find(key);
      if (shut_down_ || found == strangers_.end()) return;
      peer = std::move(found->second);
      strangers_.erase(found);
      if (!in_time) return;
      auto record = ReceiveRecord(peer.get(), std::as_writable_bytes(std::span(&greeting, 1)));
      const Greeting expected;
      if (!record.ok() || std::memcmp(greeting.magic, expected.magic, sizeof(expected.magic)) != 0 ||
          greeting.version != expected.version) {
        return;
      }
      auto offer = offers_.find(greeting.token);
      if (offer == offers_.end()) return;
      const bool late = offer->second <= Clock::Real().Now();
      offers_.erase(offer);
      if (late) return;
    }
    absl::Status status = Admit(std::move(peer));
    if (!status.ok()) LogWarning(absl::StrCat("a stream in shared memory could not be opened: ", status.message()));
  }

  absl::Status Admit(Descriptor peer) {
    EK_ASSIGN_OR_RETURN(Descriptor memory, CreateWritable(sizeof(Shared)));
    EK_ASSIGN_OR_RETURN(Mapping rings, Mapping::Of(memory.get(), sizeof(Shared), true));
    const Greeting answer;
    EK_RETURN_IF_ERROR(SendRecord(peer.get(), std::as_bytes(std::span(&answer, 1)), memory.get()));
    auto stream = std::make_shared<ShmStream>(std::move(peer), std::move(rings), 0, options_, streams_);
    if (!streams_->Add(stream)) return absl::OkStatus();
    std::shared_ptr<StreamHandler> handler = acceptor_(stream);
    const bool refused = handler == nullptr;
    if (refused) handler = std::make_shared<NoHandler>();
    stream->Start(std::move(handler));
    if (refused) stream->Cancel(absl::UnavailableError("the stream is not wanted"));
    return absl::OkStatus();
  }

  // Of a stream that the acceptor does not want.
  class NoHandler final : public StreamHandler {
   public:
    void OnMessage(Stream&, Message, const PayloadIn&) override {}
    void OnClosed(Stream&, const absl::Status&) override {}
  };

  const Descriptor socket_;
  const std::string name_;
  const Acceptor acceptor_;
  const ShmOptions options_;
  Watcher& watcher_ = Watcher::Of();
  const std::shared_ptr<ShmStreams> streams_ = std::make_shared<ShmStreams>();

  Mutex mutex_;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  Watcher::Key listening_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Secret, TimePoint> offers_ ABSL_GUARDED_BY(mutex_);
  std::map<Watcher::Key, Descriptor> strangers_ ABSL_GUARDED_BY(mutex_);
};

class ShmWay final : public SideWay {
 public:
  explicit ShmWay(const ShmOptions& options) : options_(options) {}
  ~ShmWay() override {
    streams_->Seal();
    for (const auto& stream : streams_->Snapshot()) {
      stream->Cancel(absl::UnavailableError("[stream] the transport was taken down"));
    }
    (void)streams_->WaitUntilEmpty(kNever);
  }

  std::string name() const override { return "shm"; }

  // One kernel, one namespace of socket names, one user.
  std::string reach() const override {
    std::string boot;
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    if (!std::getline(file, boot)) return absl::StrCat("process ", getpid());  // unknown: reaches only itself
    std::array<char, 64> network = {};
    const ssize_t size = readlink("/proc/self/ns/net", network.data(), network.size() - 1);
    return absl::StrCat(boot, " ", size > 0 ? network.data() : "", " user ", geteuid());
  }

  absl::StatusOr<std::unique_ptr<SideDoor>> Open(const std::string&, Acceptor acceptor) override {
    EK_ASSIGN_OR_RETURN(const Secret secret, NewSecret());
    const std::string name = ToHex(secret);
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) return SocketError("socket");
    const SocketName address(name);
    if (bind(socket.get(), address.get(), address.size) != 0) return SocketError("bind");
    if (listen(socket.get(), 128) != 0) return SocketError("listen");
    auto door = std::make_unique<ShmDoor>(std::move(socket), name, std::move(acceptor), options_);
    door->Start();
    return door;
  }

  void Attend(absl::FunctionRef<bool()> over) override {
    if (options_.look <= Duration::zero() || over() || !attending_.TryLock()) return;
    if (patience_.Looks()) {
      streams_->CopyTo(attended_);
      for (const auto& stream : attended_) stream->BeginToListen();
      if (!attended_.empty()) Listen(over);
      for (const auto& stream : attended_) stream->EndToListen();
      attended_.clear();
    }
    attending_.Unlock();
  }

  absl::StatusOr<std::shared_ptr<Stream>> Connect(const std::string&, const std::string& offer,
                                                  std::shared_ptr<StreamHandler> handler, TimePoint deadline) override {
    EK_ASSIGN_OR_RETURN(auto opened, Open(offer, deadline));
    auto stream = std::make_shared<ShmStream>(std::move(opened.first), std::move(opened.second), 1, options_, streams_);
    if (!streams_->Add(stream)) return absl::UnavailableError("[shm] the transport was taken down");
    stream->Start(std::move(handler));
    return stream;
  }

 private:
  void Listen(absl::FunctionRef<bool()> over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(attending_) {
    const TimePoint end = Clock::Real().Now() + kLongestListening;
    bool any = false;
    for (;;) {
      bool heard = false;
      const Looked looked = LookFor(options_.look, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        for (std::size_t i = 0; i < attended_.size(); ++i) {
          const ShmStream::Heard now = attended_[i]->Listen();
          heard |= now.messages;
          if (!now.long_payload) continue;
          attended_[i]->EndToListen();
          attended_.erase(attended_.begin() + static_cast<std::ptrdiff_t>(i--));
        }
        return heard || attended_.empty() || over();
      });
      any |= heard;
      if (looked == Looked::kCrowded) return patience_.Learn(false);
      if (heard && !over() && Clock::Real().Now() < end) continue;
      // What another thread brought says nothing.
      if (any || !over()) patience_.Learn(any);
      return;
    }
  }

  absl::StatusOr<std::pair<Descriptor, Mapping>> Open(const std::string& offer, TimePoint deadline) {
    Greeting greeting;
    if (offer.size() != 4 * kSecretBytes) return absl::InvalidArgumentError("[shm] the offer has another length");
    const std::string token = absl::HexStringToBytes(offer.substr(2 * kSecretBytes));
    std::memcpy(greeting.token.data(), token.data(), kSecretBytes);
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) return SocketError("socket");
    const SocketName address(offer.substr(0, 2 * kSecretBytes));
    if (connect(socket.get(), address.get(), address.size) != 0) return SocketError("connect");
    EK_RETURN_IF_ERROR(CheckSameUser(socket.get()));
    EK_RETURN_IF_ERROR(SendRecord(socket.get(), std::as_bytes(std::span(&greeting, 1)), -1));
    EK_RETURN_IF_ERROR(WaitReadable(socket.get(), deadline));
    Greeting answer;
    EK_ASSIGN_OR_RETURN(Record record, ReceiveRecord(socket.get(), std::as_writable_bytes(std::span(&answer, 1))));
    if (std::memcmp(answer.magic, greeting.magic, sizeof(answer.magic)) != 0 || answer.version != greeting.version ||
        record.fd.get() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("[shm] the server answers in version ", answer.version, ", this is version ", greeting.version));
    }
    EK_ASSIGN_OR_RETURN(Mapping rings, Mapping::Of(record.fd.get(), sizeof(Shared), true));
    return std::pair(std::move(socket), std::move(rings));
  }

  const ShmOptions options_;
  const std::shared_ptr<ShmStreams> streams_ = std::make_shared<ShmStreams>();
  Mutex attending_;  // held by whoever attends
  std::vector<std::shared_ptr<ShmStream>> attended_ ABSL_GUARDED_BY(attending_);
  Patience patience_ ABSL_GUARDED_BY(attending_);
};

}  // namespace
}  // namespace shm

std::unique_ptr<SideWay> MakeShmWay(const ShmOptions& options) { return std::make_unique<shm::ShmWay>(options); }

}  // namespace evenkeel
