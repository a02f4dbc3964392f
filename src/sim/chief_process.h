// The real Chief in a virtual process: streams, timer, log and manifest writes around it, as runtime's chief has them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "evenkeel/chief/chief.h"
#include "sim/environment.h"

namespace evenkeel::sim {

class ChiefProcess final : public Peer {
 public:
  ChiefProcess(Environment& environment, std::uint64_t life);

  void Start();
  void OnTimer() override;
  void OnMessage(SessionId stream, Message message, Payload payload) override;
  void OnClosed(SessionId stream) override;
  void Stop();
  // `evenkeel drain` and `evenkeel scale`.
  OrderReply Order(Body order);
  void TickNow();
  // The next manifest cannot be written.
  void FailManifest() { ++failing_manifests_; }
  // Ends the streams in order, after the job.
  void CloseAll();

  // The end of the simulation: the Chief is gone.
  void Destroy() { chief_.reset(); }

  const std::optional<EndAction>& end() const { return end_; }
  std::string StatusJson() const { return chief_->StatusJson(environment_.scheduler.now()); }

 private:
  static ChiefOptions MakeOptions(Environment& environment);
  void Take(ChiefActions actions);
  void OnDisk(std::function<void()> work);
  void WriteManifest(const Manifest& manifest);

  Environment& environment_;
  Rng rng_;
  const ChiefOptions options_;
  std::unique_ptr<Chief> chief_;
  std::map<SessionId, std::string> streams_;  // and whose they are, once it has joined
  TimePoint disk_free_{};
  int failing_manifests_ = 0;
  std::optional<EndAction> end_;
};

}  // namespace evenkeel::sim
