// gRPC everywhere; between workers and servers the first way besides it that both ends have, and between the chief and
// members on its machine shared memory: its messages are small and many, and each waits for the one before.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/status.h"
#include "transport/grpc/grpc_transport.h"
#include "transport/side_way.h"

namespace evenkeel {
namespace {

constexpr Duration kOpenTime = std::chrono::seconds(5);  // for one way; then the next one is tried
constexpr std::int64_t kMessageBytes = 256;              // a waiting message's weight besides its payload

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// A stream whose way is not known yet, then a thin cover of the stream that it became.
class CoverStream final : public Stream, public StreamHandler, public std::enable_shared_from_this<CoverStream> {
 public:
  CoverStream(std::string address, std::shared_ptr<StreamHandler> handler, std::int64_t max_queued_bytes)
      : address_(std::move(address)), max_queued_bytes_(max_queued_bytes), handler_(std::move(handler)) {}

  absl::Status Send(Message message, PayloadOut payload) override {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      if (closed_) return absl::UnavailableError(absl::StrCat("[send] stream to ", address_, " is closed"));
      if (!flushed_) {
        const auto bytes = kMessageBytes + static_cast<std::int64_t>(payload.bytes.size());
        if (waiting_bytes_ + bytes <= max_queued_bytes_) {
          waiting_bytes_ += bytes;
          waiting_.push_back({std::move(message), std::move(payload)});
          return absl::OkStatus();
        }
        // What waits is handed over already, and that waits for nobody; then the bound is the stream's own.
        while (adopting_ && !flushed_) handed_over_.Wait(mutex_);
        if (!flushed_) {
          closed_ = true;
          too_much_ = absl::ResourceExhaustedError(absl::StrCat("[send] ", waiting_bytes_, " bytes wait for a way to ",
                                                                address_, ", at most ", max_queued_bytes_));
          return too_much_;
        }
        if (closed_) return absl::UnavailableError(absl::StrCat("[send] stream to ", address_, " is closed"));
      }
      stream = stream_;
    }
    if (stream == nullptr) return absl::UnavailableError(absl::StrCat("[send] stream to ", address_, " is closed"));
    return stream->Send(std::move(message), std::move(payload));
  }

  void Close() override {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      if (flushed_) stream = stream_;
    }
    if (stream != nullptr) stream->Close();
  }

  std::string peer() const override { return address_; }

  std::string way() const override {
    MutexLock lock(mutex_);
    return way_;
  }

  // The way is open: what waits goes out, in order, then what comes later goes straight through.
  void Adopt(std::shared_ptr<Stream> stream) {
    {
      MutexLock lock(mutex_);
      way_ = stream->way();  // before anything goes out, for an answer may come at once
    }
    for (;;) {
      std::deque<Waiting> waiting;
      bool close = false;
      {
        MutexLock lock(mutex_);
        adopting_ = true;
        waiting.swap(waiting_);
        waiting_bytes_ = 0;
        if (waiting.empty()) {
          close = closed_;
          flushed_ = true;
          if (!ended_) stream_ = stream;
          handed_over_.NotifyAll();
        }
      }
      if (waiting.empty()) {
        if (close) stream->Close();
        return;
      }
      // One that fails is followed by OnClosed.
      for (Waiting& next : waiting) (void)stream->Send(std::move(next.message), std::move(next.payload));
    }
  }

  // No way could be opened, or none is wanted any more.
  void Fail(absl::Status status) { End(*this, status); }

  bool closed() {
    MutexLock lock(mutex_);
    return closed_;
  }
  absl::Status too_much() {
    MutexLock lock(mutex_);
    return too_much_;
  }

  std::span<std::byte> Destination(Stream&, const Message& message, std::size_t payload_bytes) override {
    return handler_->Destination(*this, message, payload_bytes);
  }
  void OnMessage(Stream&, Message message, const PayloadIn& payload) override {
    handler_->OnMessage(*this, std::move(message), payload);
  }
  void OnClosed(Stream&, const absl::Status& status) override { End(*this, status); }

 private:
  struct Waiting {
    Message message;
    PayloadOut payload;
  };

  void End(Stream& stream, const absl::Status& status) {
    std::deque<Waiting> dropped;
    std::shared_ptr<Stream> covered;  // dropped outside the lock; breaks the circle
    std::shared_ptr<CoverStream> self = shared_from_this();
    {
      MutexLock lock(mutex_);
      dropped.swap(waiting_);
      covered = std::move(stream_);
      closed_ = flushed_ = ended_ = true;
      handed_over_.NotifyAll();
    }
    dropped.clear();
    std::exchange(handler_, nullptr)->OnClosed(stream, status);
  }

  const std::string address_;
  const std::int64_t max_queued_bytes_;
  std::shared_ptr<StreamHandler> handler_;  // of whoever calls the handler

  mutable Mutex mutex_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  std::string way_ ABSL_GUARDED_BY(mutex_);  // "": none is open yet
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::int64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar handed_over_;                            // flushed_ has become true
  bool adopting_ ABSL_GUARDED_BY(mutex_) = false;  // the way is open
  bool flushed_ ABSL_GUARDED_BY(mutex_) = false;   // nothing waits here any more
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status too_much_ ABSL_GUARDED_BY(mutex_);
};

using SideWays = std::vector<std::unique_ptr<SideWay>>;
using Doors = std::map<std::string, std::unique_ptr<SideDoor>>;  // by the way's name

class WaysListener final : public Listener {
 public:
  WaysListener(std::unique_ptr<Listener> grpc, std::shared_ptr<Doors> doors)
      : grpc_(std::move(grpc)), doors_(std::move(doors)) {}
  ~WaysListener() override { Shutdown(Duration::zero()); }

  int port() const override { return grpc_->port(); }

  // First those that offer: gRPC's questions end before the doors do.
  void Shutdown(Duration grace) override {
    const TimePoint deadline = Clock::Real().Now() + grace;
    grpc_->Shutdown(grace);
    for (auto& [name, door] : *doors_) door->Shutdown(std::max(deadline - Clock::Real().Now(), Duration::zero()));
  }

 private:
  const std::unique_ptr<Listener> grpc_;
  const std::shared_ptr<Doors> doors_;  // shared with the answers
};

class WaysTransport final : public Transport {
 public:
  WaysTransport(const TransportOptions& options, SideWays ways, bool by_grpc)
      : options_(options), ways_(std::move(ways)), by_grpc_(by_grpc), grpc_(MakeOfferingTransport(options.grpc)) {}

  ~WaysTransport() override {
    grpc_->EndQuestions();
    std::vector<std::thread> threads;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(Service service, const std::string& address,
                                                   Acceptor acceptor) override {
    const std::vector<SideWay*> ways = WaysOf(service);
    if (ways.empty()) return grpc_->Listen(service, address, std::move(acceptor));
    auto doors = std::make_shared<Doors>();
    for (SideWay* const way : ways) {
      auto door = way->Open(HostOf(address), acceptor);
      if (door.ok()) {
        doors->emplace(way->name(), *std::move(door));
      } else {
        LogWarning(absl::StrCat("no ", way->name(), " here: ", door.status().message()));
      }
    }
    auto offer = [doors, known = Known(service)](const std::vector<Way>& asked) {
      std::vector<Way> offered;
      for (const Way& way : known) {
        const auto door = doors->find(way.name);
        const bool wanted = std::any_of(asked.begin(), asked.end(), [&](const Way& other) {
          return other.name == way.name && other.reach == way.reach;
        });
        if (door == doors->end()) continue;
        if (!wanted) {
          offered.push_back({way.name, way.reach, ""});  // so that whoever asked can say what there would be
          continue;
        }
        absl::StatusOr<std::string> text = door->second->Offer();
        if (text.ok()) offered.push_back({way.name, way.reach, *std::move(text)});
      }
      return offered;
    };
    EK_ASSIGN_OR_RETURN(auto listener, grpc_->ListenOffering(service, address, std::move(acceptor), std::move(offer)));
    return std::make_unique<WaysListener>(std::move(listener), std::move(doors));
  }

  std::shared_ptr<Stream> Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler,
                                  Duration timeout) override {
    if (WaysOf(service).empty()) return grpc_->Connect(service, address, std::move(handler), timeout);
    auto stream = std::make_shared<CoverStream>(address, std::move(handler), options_.grpc.max_queued_bytes);
    const TimePoint deadline = Clock::Real().Now() + timeout;
    MutexLock lock(mutex_);
    EK_CHECK(!stopping_);
    JoinFinished();
    threads_.emplace_back([=, this] { Open(service, stream, address, timeout, deadline); });
    return stream;
  }

  void Attend(absl::FunctionRef<bool()> over) override {
    for (const auto& way : ways_) way->Attend(over);
  }

 private:
  // On a thread of its own.
  void Open(Service service, const std::shared_ptr<CoverStream>& stream, const std::string& address, Duration timeout,
            TimePoint deadline) {
    const absl::StatusOr<std::vector<Way>> offered = grpc_->AskForWays(service, address, Known(service), deadline);
    std::shared_ptr<Stream> opened = offered.ok() ? OpenSideWay(service, stream, address, *offered, deadline) : nullptr;
    const Duration left = deadline - Clock::Real().Now();
    if (opened != nullptr) {
      stream->Adopt(std::move(opened));
    } else if (!stream->too_much().ok()) {
      stream->Fail(stream->too_much());
    } else if (left <= Duration::zero()) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
      stream->Fail(absl::UnavailableError(absl::StrCat("[connect] no answer from ", address, " within ", ms, " ms")));
    } else if (!offered.ok()) {
      // Not by gRPC, though somebody may listen by now: the stream would stay there for as long as it lasts.
      stream->Fail(offered.status());
    } else if (by_grpc_ || service == Service::kChief) {
      stream->Adopt(grpc_->Connect(service, address, stream, left));
    } else {
      stream->Fail(absl::UnavailableError(NoneInCommon(address, *offered)));
    }
    MutexLock lock(mutex_);
    finished_.insert(std::this_thread::get_id());
  }

  // Null: none of those offered could be opened.
  std::shared_ptr<Stream> OpenSideWay(Service service, const std::shared_ptr<CoverStream>& stream,
                                      const std::string& address, const std::vector<Way>& offered, TimePoint deadline) {
    deadline = std::min(deadline, Clock::Real().Now() + kOpenTime);
    for (const Way& offer : offered) {
      for (SideWay* const way : WaysOf(service)) {
        if (offer.offer.empty() || way->name() != offer.name || way->reach() != offer.reach) continue;
        auto opened = way->Connect(HostOf(address), offer.offer, stream, deadline);
        if (opened.ok()) {
          LogInfo(absl::StrCat("speaks to ", address, " by ", way->name()));
          return *std::move(opened);
        }
        LogWarning(absl::StrCat("no ", way->name(), " to ", address, ": ", opened.status().message()));
      }
    }
    return nullptr;
  }

  std::string NoneInCommon(const std::string& address, const std::vector<Way>& offered) const {
    std::string allowed, there = "grpc";
    for (const auto& way : ways_) absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", way->name());
    for (const Way& way : offered) {
      const bool known =
          std::any_of(ways_.begin(), ways_.end(), [&](const auto& own) { return own->name() == way.name; });
      absl::StrAppend(&there, ", ", way.name, !known ? "" : way.offer.empty() ? " (elsewhere)" : " (which failed)");
    }
    return absl::StrCat("[connect] ", address, " has the data paths ", there, "; allowed here: ", allowed);
  }

  std::vector<SideWay*> WaysOf(Service service) const {
    std::vector<SideWay*> ways;
    for (const auto& way : ways_) {
      if (service == Service::kParameterServer || way->name() == "shm") ways.push_back(way.get());
    }
    return ways;
  }

  std::vector<Way> Known(Service service) const {
    std::vector<Way> known;
    for (SideWay* const way : WaysOf(service)) known.push_back({way->name(), way->reach(), ""});
    return known;
  }

  void JoinFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::erase_if(threads_, [this](std::thread& thread) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (finished_.erase(thread.get_id()) == 0) return false;
      thread.join();
      return true;
    });
  }

  const TransportOptions options_;
  const SideWays ways_;
  const bool by_grpc_;
  const std::unique_ptr<OfferingTransport> grpc_;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::set<std::thread::id> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Transport> MakeTransport(const TransportOptions& options) {
  SideWays ways;
  bool by_grpc = false;
  for (DataPath path : options.data_paths) {
    switch (path) {
      case DataPath::kGrpc:
        by_grpc = true;
        break;
      case DataPath::kTcp:
        ways.push_back(MakeTcpWay(options.tcp));
        break;
      case DataPath::kShm:
        ways.push_back(MakeShmWay(options.shm));
        break;
    }
  }
  return std::make_unique<WaysTransport>(options, std::move(ways), by_grpc);
}

}  // namespace evenkeel
