// A transport over a single side way, so that the suite can run on it: the offer's way to the peer, which is gRPC's
// between two processes, is a call within this one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/transport/transports.h"
#include "transport/side_way.h"

namespace evenkeel {

class SideTransport final : public Transport {
 public:
  explicit SideTransport(std::unique_ptr<SideWay> way) : way_(std::move(way)) {}

  absl::StatusOr<std::unique_ptr<Listener>> Listen(Service service, const std::string& address,
                                                   Acceptor acceptor) override {
    const auto [host, asked] = Split(address);
    auto door = way_->Open(host, std::move(acceptor));
    if (!door.ok()) return door.status();
    MutexLock lock(doors_->mutex);
    const int port = asked == "0" ? doors_->next_port++ : std::stoi(asked);
    const Key key(service, absl::StrCat(host, ":", port));
    if (doors_->open.count(key) > 0) {
      return absl::UnavailableError(absl::StrCat("[listen] ", address, ": port ", port, " is in use"));
    }
    std::shared_ptr<SideDoor> shared = *std::move(door);
    doors_->open[key] = shared;
    return std::make_unique<SideListener>(doors_, key, port, std::move(shared));
  }

  std::shared_ptr<Stream> Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler,
                                  Duration timeout) override {
    auto stream = TryConnect(service, address, handler, Clock::Real().Now() + timeout);
    if (stream.ok()) return *stream;
    auto dead = std::make_shared<DeadStream>(address);
    handler->OnClosed(*dead, absl::UnavailableError(absl::StrCat(address, ": ", stream.status().message())));
    return dead;
  }

 private:
  using Key = std::pair<Service, std::string>;
  struct Doors {
    Mutex mutex;
    std::map<Key, std::shared_ptr<SideDoor>> open ABSL_GUARDED_BY(mutex);
    int next_port ABSL_GUARDED_BY(mutex) = 49152;
  };

  class SideListener final : public Listener {
   public:
    SideListener(std::shared_ptr<Doors> doors, Key key, int port, std::shared_ptr<SideDoor> door)
        : doors_(std::move(doors)), key_(std::move(key)), port_(port), door_(std::move(door)) {}
    ~SideListener() override { Shutdown(Duration::zero()); }
    int port() const override { return port_; }
    void Shutdown(Duration grace) override {
      door_->Shutdown(grace);
      MutexLock lock(doors_->mutex);
      auto found = doors_->open.find(key_);
      if (found != doors_->open.end() && found->second == door_) doors_->open.erase(found);
    }

   private:
    const std::shared_ptr<Doors> doors_;
    const Key key_;
    const int port_;
    const std::shared_ptr<SideDoor> door_;
  };

  class DeadStream final : public Stream {
   public:
    explicit DeadStream(std::string peer) : peer_(std::move(peer)) {}
    absl::Status Send(Message, PayloadOut) override { return absl::UnavailableError("[send] never connected"); }
    void Close() override {}
    std::string peer() const override { return peer_; }

   private:
    const std::string peer_;
  };

  static std::pair<std::string, std::string> Split(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    return {address.substr(0, colon), address.substr(colon + 1)};
  }

  absl::StatusOr<std::shared_ptr<Stream>> TryConnect(Service service, const std::string& address,
                                                     const std::shared_ptr<StreamHandler>& handler,
                                                     TimePoint deadline) {
    std::shared_ptr<SideDoor> door;
    {
      MutexLock lock(doors_->mutex);
      auto found = doors_->open.find(Key(service, address));
      if (found == doors_->open.end()) return absl::UnavailableError("nobody listens");
      door = found->second;
    }
    auto offer = door->Offer();
    if (!offer.ok()) return offer.status();
    return way_->Connect(Split(address).first, *offer, handler, deadline);
  }

  const std::shared_ptr<Doors> doors_ = std::make_shared<Doors>();
  const std::unique_ptr<SideWay> way_;
};

}  // namespace evenkeel
