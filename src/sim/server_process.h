// The real ps::Server in a virtual process, which holds no parameters but a fingerprint of them, and in its staging
// slots the names of what was written there.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "evenkeel/protocol/stream.h"
#include "evenkeel/ps/server.h"
#include "sim/environment.h"

namespace evenkeel::sim {

class ServerProcess final : public Peer {
 public:
  ServerProcess(Environment& environment, std::uint32_t index, std::uint64_t life);

  void Start();
  void OnTimer() override;
  void OnMessage(SessionId stream, Message message, Payload payload) override;
  void OnClosed(SessionId stream) override;
  void Reconnect();  // while the old stream stays open
  void FailSnapshot() { ++failing_snapshots_; }

  // The end of the simulation: the Server is gone.
  void Destroy() { server_.reset(); }

  bool ended() const { return ended_; }

 private:
  using Work = std::variant<ps::Initialise, ps::Restore, ps::AllocateSlot, ps::ComputeNorms, ps::ApplyDecision,
                            ps::StartSnapshot>;
  struct Shard {
    std::shared_ptr<const ParameterLayout> layout;
    Version version;
    std::uint64_t fingerprint = 0;
    std::vector<std::vector<std::uint64_t>> slots;  // what each bucket's stripe holds
  };

  void Perform(ps::Actions actions);
  void SendToChief(Message message);
  void Connect();
  void OnStage(SessionId stream, const Message& message, Payload payload);
  void NoteStale(const ps::Actions& actions, const Envelope& envelope);
  void ServePull(SessionId stream, std::uint64_t request);
  void Enqueue(Work work);
  void BeginWork();
  void EndWork();
  void Finish(const ps::Initialise& work);
  void Finish(const ps::Restore& work);
  void Finish(const ps::AllocateSlot& work);
  void Finish(const ps::ComputeNorms& work);
  void Finish(const ps::ApplyDecision& work);
  void Finish(const ps::StartSnapshot& work);
  void Hold(const ps::Place& place, Version version, std::uint64_t fingerprint);
  void CheckSlots(const std::vector<UpdateId>& updates, const std::vector<ps::StageSlot>& slots, const char* when);
  bool Owns(int bucket) const;
  TimePoint now() const { return environment_.scheduler.now(); }

  Environment& environment_;
  const std::uint32_t index_;
  const std::uint64_t nonce_;
  Rng rng_;
  std::unique_ptr<ps::Server> server_;
  std::optional<Shard> shard_;

  // The way to the chief, as runtime's server has it.
  SessionId chief_;  // 0: none
  bool joined_ = false;
  TimePoint away_since_{};
  TimePoint next_attempt_{};
  TimePoint next_renew_ = kNever;
  Backoff backoff_;

  std::deque<Work> work_;
  bool working_ = false;
  int failing_snapshots_ = 0;
  bool ended_ = false;
};

}  // namespace evenkeel::sim
