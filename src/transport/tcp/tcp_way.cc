#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"
#include "transport/side_way.h"
#include "transport/tcp/crew.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_stream.h"

namespace evenkeel {
namespace {

constexpr std::size_t kOffersMax = 256;
constexpr Duration kOfferLife = std::chrono::seconds(10);
// Connections that have not; beyond them the oldest goes: a peer says hello in its first packet, only strangers stay.
constexpr std::size_t kGuestsMax = 64;
// So long no connection is accepted after the process ran out of descriptors.
constexpr Duration kAcceptPause = Milliseconds(100);

class TcpDoor final : public SideDoor {
 public:
  TcpDoor(ListeningSockets listening, Fd wake, Acceptor acceptor, const TcpOptions& options)
      : options_(options), listening_(std::move(listening)), wake_(std::move(wake)), acceptor_(std::move(acceptor)) {
    crew_->Start();
    thread_ = std::thread([this] { Run(); });
  }
  ~TcpDoor() override {
    Shutdown(Duration::zero());
    crew_->Stop();
  }

  absl::StatusOr<std::string> Offer() override {
    if (sealed_) return absl::UnavailableError("[tcp] the door is shut");
    EK_ASSIGN_OR_RETURN(Token token, offers_.Add(Clock::Real().Now()));
    return EncodeOffer({.port = listening_.port, .token = token});
  }

  void Shutdown(Duration grace) override;

 private:
  // A connection that has not presented its token yet.
  struct Guest {
    Fd fd;
    TimePoint until;
    TokenHello hello{};
    std::size_t received = 0;
  };
  enum class Verdict { kWait, kRefuse, kWelcome };

  void Run();
  // Waits until a socket has something, a guest's time is over, or the door is shut (false).
  bool Await(std::vector<pollfd>& waits);
  void AcceptFrom(int listening_fd);
  Verdict Hear(Guest& guest);
  void Welcome(Fd fd);

  const TcpOptions options_;
  ListeningSockets listening_;
  const Fd wake_;  // an eventfd: the door is shut
  const Acceptor acceptor_;
  const std::shared_ptr<Crew> crew_ = std::make_shared<Crew>();
  OfferBook offers_{kOffersMax, kOfferLife};
  std::atomic<bool> sealed_{false};
  // Used by the thread only.
  std::deque<Guest> guests_;
  TimePoint accept_again_{};

  Mutex mutex_;  // held while one caller shuts down, so that others wait for it
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

void TcpDoor::Shutdown(Duration grace) {
  MutexLock lock(mutex_);
  if (shut_down_) return;
  shut_down_ = true;
  sealed_ = true;
  crew_->Seal();
  const TimePoint deadline = Clock::Real().Now() + grace;
  const std::uint64_t one = 1;
  EK_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  listening_.sockets.clear();
  for (const std::shared_ptr<TcpStream>& stream : crew_->Snapshot()) stream->Close();
  if (crew_->WaitUntilEmpty(deadline)) return;
  for (const std::shared_ptr<TcpStream>& stream : crew_->Snapshot()) {
    stream->Cut(absl::UnavailableError("[stream] the server was taken down"));
  }
  crew_->WaitUntilEmpty(kNever);  // no peer has a say any more
}

void TcpDoor::Run() {
  std::vector<pollfd> waits;
  while (Await(waits)) {
    const std::size_t listeners = listening_.sockets.size();
    // Guests first, while they stand as in `waits`; then those that are new.
    std::size_t index = 0;
    const TimePoint now = Clock::Real().Now();
    for (std::size_t i = 1 + listeners; i < waits.size(); ++i) {
      Guest& guest = guests_[index];
      Verdict verdict = waits[i].revents != 0 ? Hear(guest) : Verdict::kWait;
      if (verdict == Verdict::kWait && guest.until <= now) verdict = Verdict::kRefuse;
      if (verdict == Verdict::kWait) {
        ++index;
        continue;
      }
      Fd fd = std::move(guest.fd);
      guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(index));
      if (verdict == Verdict::kWelcome) Welcome(std::move(fd));
    }
    for (std::size_t i = 0; i < listeners; ++i) {
      if (waits[1 + i].revents != 0) AcceptFrom(listening_.sockets[i].get());
    }
  }
  guests_.clear();
}

bool TcpDoor::Await(std::vector<pollfd>& waits) {
  const TimePoint now = Clock::Real().Now();
  const bool accepting = accept_again_ <= now;
  TimePoint deadline = accepting ? kNever : accept_again_;
  waits.clear();
  waits.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
  for (const Fd& fd : listening_.sockets) {
    waits.push_back({.fd = fd.get(), .events = static_cast<short>(accepting ? POLLIN : 0), .revents = 0});
  }
  for (const Guest& guest : guests_) {
    waits.push_back({.fd = guest.fd.get(), .events = POLLIN, .revents = 0});
    deadline = std::min(deadline, guest.until);
  }
  // Without guests it waits for any, or for Shutdown: nobody else is owed an answer.
  if (poll(waits.data(), waits.size(), PollTimeout(deadline)) < 0) {
    for (pollfd& wait : waits) wait.revents = 0;  // interrupted
  }
  return waits[0].revents == 0;
}

void TcpDoor::AcceptFrom(int listening_fd) {
  Fd fd(accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      accept_again_ = Clock::Real().Now() + kAcceptPause;
    }
    return;
  }
  TuneSocket(fd.get(), options_);
  if (guests_.size() >= kGuestsMax) guests_.pop_front();
  guests_.push_back({.fd = std::move(fd), .until = Clock::Real().Now() + options_.hello_timeout});
}

TcpDoor::Verdict TcpDoor::Hear(Guest& guest) {
  ssize_t count =
      recv(guest.fd.get(), guest.hello.data() + guest.received, guest.hello.size() - guest.received, MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR ? Verdict::kWait : Verdict::kRefuse;
  if (count == 0) return Verdict::kRefuse;
  guest.received += static_cast<std::size_t>(count);
  if (!BeginsAsGreeting(std::span<const std::byte>(guest.hello).first(guest.received))) return Verdict::kRefuse;
  if (guest.received < guest.hello.size()) return Verdict::kWait;
  return offers_.Take(TokenOf(guest.hello), Clock::Real().Now()) ? Verdict::kWelcome : Verdict::kRefuse;
}

void TcpDoor::Welcome(Fd fd) {
  const int socket = fd.get();
  auto stream = std::make_shared<TcpStream>(std::move(fd), TcpStream::Side::kServer, PeerName(socket), options_, crew_);
  if (!crew_->Add(stream)) return;
  std::shared_ptr<StreamHandler> handler = acceptor_(stream);
  if (handler == nullptr) {
    stream->Cut(absl::UnavailableError("[stream] it is not wanted"));
    crew_->Remove(stream, std::thread());
    return;
  }
  // The first bytes on a socket always fit; where the peer is gone already, the stream will see it.
  (void)SendBy(socket, MakeGreeting(), Clock::Real().Now());
  stream->Begin(std::move(handler));
}

class TcpWay final : public SideWay {
 public:
  explicit TcpWay(const TcpOptions& options) : options_(options) { crew_->Start(); }
  ~TcpWay() override {
    crew_->Seal();
    for (const std::shared_ptr<TcpStream>& stream : crew_->Snapshot()) {
      stream->Cut(absl::UnavailableError("[stream] the transport was taken down"));
    }
    crew_->WaitUntilEmpty(kNever);  // no peer has a say any more
    crew_->Stop();
  }

  std::string name() const override { return "tcp"; }
  std::string reach() const override { return ""; }

  absl::StatusOr<std::unique_ptr<SideDoor>> Open(const std::string& host, Acceptor acceptor) override {
    EK_ASSIGN_OR_RETURN(ListeningSockets listening, ListenOnHost(host));
    Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake.valid()) return absl::ResourceExhaustedError("[tcp] no file descriptor is left");
    return std::make_unique<TcpDoor>(std::move(listening), std::move(wake), std::move(acceptor), options_);
  }

  absl::StatusOr<std::shared_ptr<Stream>> Connect(const std::string& host, const std::string& offer,
                                                  std::shared_ptr<StreamHandler> handler, TimePoint deadline) override {
    EK_ASSIGN_OR_RETURN(TcpOffer target, DecodeOffer(offer));
    EK_ASSIGN_OR_RETURN(Fd fd, ConnectToHost(host, target.port, deadline));
    TuneSocket(fd.get(), options_);
    const std::string peer = PeerName(fd.get());
    absl::Status status = SendBy(fd.get(), MakeHello(target.token), deadline);
    Greeting greeting{};
    if (status.ok()) status = ReceiveBy(fd.get(), greeting, deadline);
    if (!status.ok()) {
      return absl::UnavailableError(absl::StrCat("[connect] ", host, ":", target.port, ": ", status.message()));
    }
    if (!BeginsAsGreeting(greeting)) {
      return absl::UnavailableError(absl::StrCat("[connect] ", host, ":", target.port, " is no door of this version"));
    }
    auto stream = std::make_shared<TcpStream>(std::move(fd), TcpStream::Side::kClient, peer, options_, crew_);
    if (!crew_->Add(stream)) return absl::UnavailableError("[connect] the transport was taken down");
    stream->Begin(std::move(handler));
    return stream;
  }

 private:
  const TcpOptions options_;
  const std::shared_ptr<Crew> crew_ = std::make_shared<Crew>();
};

}  // namespace

std::unique_ptr<SideWay> MakeTcpWay(const TcpOptions& options) { return std::make_unique<TcpWay>(options); }

}  // namespace evenkeel
