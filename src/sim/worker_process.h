// A virtual worker: it speaks as worker/ does, computes nothing and takes its time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evenkeel/protocol/layout.h"
#include "evenkeel/protocol/renewal.h"
#include "evenkeel/protocol/stream.h"
#include "sim/environment.h"

namespace evenkeel::sim {

class WorkerProcess final : public Peer {
 public:
  WorkerProcess(Environment& environment, std::string machine, std::uint64_t life);

  void Start();
  void OnTimer() override;
  void OnMessage(SessionId stream, Message message, Payload payload) override;
  void OnClosed(SessionId stream) override;
  void Reconnect();  // a second stream to the chief, the first one open
  void Leave();

  // Counts what it was computing when it stopped for good.
  void StopComputing();

  bool ended() const { return ended_; }
  // It was refused for good, or waited in vain: another process may take its place.
  bool wants_successor() const { return ended_ && !left_ && !job_over_; }

 private:
  enum class Doing { kIdle, kPulling, kComputing, kStaged };
  struct Link {
    ServerAddress server;
    SessionId stream;  // 0: none
    bool up = false;
    TimePoint next_attempt{};
    TimePoint down_since{};
    std::optional<Backoff> backoff;
    bool pulled = true;
    Version pulled_version;
    TimePoint pull_at = kNever;
    TimePoint restage_at = kNever;
  };

  void Connect();
  void OnChief(Message message);
  void OnServer(Link& link, const Message& message, bool ahead);
  void OnLinkRefused(Link& link, const Refuse& refuse);
  void OnWelcome(const Welcome& welcome);
  Link TakeOrMakeLink(std::vector<Link>& former, const ServerAddress& server);
  void FollowServers(const Welcome& welcome);
  void OnConnectAhead(const ConnectAhead& order);
  void CloseAll(const std::vector<Link>& links);
  void Supersede();
  void Advance();
  void StartStep();
  void Pull();
  void Compute();
  void StageBucket(Link& link, std::int32_t bucket, bool asked = false);
  void StageClosing(Link& link);
  void StageAll(Link& link);
  void ToChief(Body body);
  void LoseChief(TimePoint since);
  void ToServer(Link& link, Body body, Payload payload = {});
  bool Cancelled() const { return outcome_ && current_ && outcome_->update == current_->update; }
  void End();
  ServerIndex IndexOf(const Link& link) const { return ServerIndex(static_cast<std::uint32_t>(&link - links_.data())); }
  TimePoint now() const { return environment_.scheduler.now(); }

  Environment& environment_;
  const std::uint64_t nonce_;
  Rng rng_;
  Duration per_sample_;

  // The way to the chief.
  SessionId chief_;
  Envelope envelope_;
  bool welcomed_ = false;  // on this stream
  TimePoint lost_since_{};
  TimePoint next_attempt_{};
  Renewal renewal_;
  TimePoint leave_deadline_ = kNever;
  Backoff backoff_;

  std::optional<Welcome> welcome_;
  std::shared_ptr<const ParameterLayout> layout_;
  std::vector<Link> links_;
  LayoutNumber links_layout_;
  std::vector<Link> coming_;  // to servers that the layout to come has and this one has not
  std::optional<LayoutNumber> layout_to_come_;
  bool ready_ = false;

  std::optional<Ticket> bound_, ahead_, current_;
  std::optional<Outcome> outcome_;
  Doing doing_ = Doing::kIdle;
  TimePoint computing_since_{};
  Duration computing_time_{1};
  std::int64_t computing_samples_ = 0;
  std::uint64_t request_ = 0;
  std::optional<Ticket> staging_;  // what servers may ask for again
  bool leave_when_idle_ = false;   // the chief has said so
  bool leaving_ = false, left_ = false, ended_ = false, job_over_ = false;
};

// The tensors that all workers of a scenario describe.
std::vector<TensorSpec> MakeTensors(const Scenario& scenario);

}  // namespace evenkeel::sim
