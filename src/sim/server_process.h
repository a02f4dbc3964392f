// The real ps::Server in a virtual process, which holds no parameters but a fingerprint of them, and in its staging
// slots the names of what was written there.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "evenkeel/protocol/renewal.h"
#include "evenkeel/protocol/stream.h"
#include "evenkeel/ps/server.h"
#include "evenkeel/ps/shard.h"
#include "sim/environment.h"

namespace evenkeel::sim {

class ServerProcess final : public Peer {
 public:
  ServerProcess(Environment& environment, std::uint32_t index, std::uint64_t life);

  void Start();
  void OnTimer() override;
  void OnMessage(SessionId stream, Message message, Payload payload) override;
  void OnClosed(SessionId stream) override;
  void Reconnect();                                       // while the old stream stays open
  void ReconnectInWork() { reconnects_in_work_ = true; }  // in the middle of the next decision
  void Leave();  // SIGTERM: once its stripes have moved to others; in the end anyway
  void FailSnapshot() { ++failing_snapshots_; }

  // The end of the simulation: the Server is gone.
  void Destroy() { server_.reset(); }

  bool ended() const { return ended_; }
  // It has left the job for good: nobody starts it again unasked.
  bool left() const { return left_; }
  std::uint32_t index() const { return index_; }

 private:
  using Work = std::variant<ps::Initialise, ps::Restore, ps::AllocateSlot, ps::ComputeNorms, ps::ApplyDecision,
                            ps::StartSnapshot, ps::PreparePlace, ps::FillPlace, ps::DropPrepared, ps::AdoptPrepared,
                            ps::ServeFetch, ps::FoldBucket>;
  struct Shard {
    ps::Place place;
    Version version;
    std::uint64_t fingerprint = 0;
    std::uint64_t former = 0;                       // before the newest decision
    std::vector<std::vector<std::uint64_t>> slots;  // what each bucket's stripe holds
  };
  // Memory for a place to come, and the streams on which it is filled, as runtime's StateFetch does.
  struct Preparation {
    using Pieces = std::vector<ps::Shard::MovePiece>;
    struct Source {
      SessionId stream;
      std::size_t asked = 0, here = 0;
    };
    struct Filled {
      ps::Shard::MovePiece piece;
      std::uint64_t fingerprint = 0;  // of the memory that it came from
    };
    ps::PreparePlace order;
    std::vector<Pieces> plan;  // by source
    Pieces own;                // copied from the shard of the layout that rules
    std::vector<Source> sources;
    std::size_t closed = 0;   // sources that have not answered yet
    std::size_t missing = 0;  // pieces
    std::optional<Version> version;
    std::vector<Filled> filled;
    std::optional<absl::Status> ended;
  };

  void Perform(ps::Actions actions);
  void SendToChief(Message message);
  void GiveUpChief();
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
  void Finish(const ps::FoldBucket& work);
  void Finish(const ps::ComputeNorms& work);
  std::vector<double> SquaredSums(const Decision& decision) const;
  void Finish(const ps::ApplyDecision& work);
  void Finish(const ps::StartSnapshot& work);
  void Hold(const ps::Place& place, Version version, std::uint64_t fingerprint);
  Invariants::Held HeldNow() const;

  // server_move.cc
  void Finish(const ps::PreparePlace& work);
  void Finish(const ps::FillPlace& work);
  void Finish(const ps::DropPrepared& work);
  void Finish(const ps::AdoptPrepared& work);
  void Finish(const ps::ServeFetch& work);
  void OnFetchMessage(std::size_t source, const Message& message, Payload payload);
  void AskMore(std::size_t source);
  // Closes the streams; tells the server unless nobody waits for it any more.
  void EndFetch(const absl::Status& status, bool tell);
  void Forget(std::uint64_t number);
  std::optional<std::size_t> SourceOf(SessionId stream) const;
  // Each float of the place is there once, from one version's memory; nullopt, and an invariant broken: not so.
  std::optional<std::uint64_t> FingerprintOf(const Preparation& prepared);
  void CheckSlots(const ps::ApplyDecision& work, const char* when);
  bool Owns(int bucket) const;
  TimePoint now() const { return environment_.scheduler.now(); }

  Environment& environment_;
  const std::uint32_t index_;
  const std::uint64_t nonce_;
  Rng rng_;
  std::unique_ptr<ps::Server> server_;
  std::optional<Shard> shard_;
  std::optional<Preparation> prepared_;

  // The way to the chief, as runtime's server has it.
  SessionId chief_;  // 0: none
  bool joined_ = false;
  TimePoint away_since_{};
  TimePoint next_attempt_{};
  Renewal renewal_;
  Backoff backoff_;

  std::deque<Work> work_;
  bool working_ = false;
  int failing_snapshots_ = 0;
  TimePoint stop_at_ = kNever;  // the end of a grace time
  bool reconnects_in_work_ = false;
  bool let_go_ = false;
  bool left_ = false;
  bool ended_ = false;
};

}  // namespace evenkeel::sim
