// The live parameter server behind RunPs: one mutex around ps::Server, one timer (the caller's thread), one apply
// thread, one snapshot thread. Events give actions under the mutex; whoever brought an event carries the actions out
// without it, one thread at a time, so that each destination sees them in order.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/thread_pool.h"
#include "evenkeel/protocol/renewal.h"
#include "evenkeel/ps/server.h"
#include "evenkeel/ps/shard.h"
#include "evenkeel/runtime/ps_runner.h"
#include "runtime/rounded_versions.h"
#include "runtime/state_fetch.h"

namespace evenkeel {

class PsProcess : public std::enable_shared_from_this<PsProcess> {  // streams' handlers hold it
 public:
  // A life of the server: from joining until it is fenced, or all is over.
  // `former`: the incarnation of the life before; `delay`: until it joins.
  PsProcess(PsOptions options, Incarnation former, Duration delay, Transport& transport, Storage& storage,
            const Clock& clock);
  absl::Status Run(StopSource& stop);
  // After Run.
  Incarnation incarnation() ABSL_LOCKS_EXCLUDED(mutex_);
  bool had_place() ABSL_LOCKS_EXCLUDED(mutex_);
  bool fenced() ABSL_LOCKS_EXCLUDED(mutex_);

  // From handlers.
  void OnChiefMessage(std::uint64_t connection, const Message& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnChiefClosed(std::uint64_t connection, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWorkerMessage(SessionId session, const Message& message) ABSL_LOCKS_EXCLUDED(mutex_);  // any but Stage
  // Leave to write a staged stripe, and where.
  struct StripeWrite {
    ps::StageWrite write;
    std::shared_ptr<ps::Shard> shard;  // whose memory it is
    // For the payload.
    std::span<std::byte> Into() const;
    // The payload is there: makes sums of what came as means.
    void Expand() const;
  };
  // nullopt: its bytes are not wanted. Otherwise EndStage follows, once.
  std::optional<StripeWrite> BeginStage(SessionId session, const Message& stage, std::size_t payload_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void EndStage(const StripeWrite& stripe, bool whole) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWorkerClosed(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Adoption {
    std::shared_ptr<ps::Shard> shard;
    Version version;
  };
  using Work = std::variant<ps::Initialise, ps::Restore, ps::AllocateSlot, ps::ComputeNorms, ps::ApplyDecision,
                            ps::StartSnapshot, ps::FillPlace, Adoption, ps::ServeFetch, ps::FoldBucket>;
  struct SnapshotJob {
    std::shared_ptr<ps::Shard> shard;  // outlives a change of place
    Snapshot snapshot;
  };
  using SideWork = std::variant<SnapshotJob, ps::PreparePlace>;

  // For a layout to come.
  struct Preparation {
    std::uint64_t number = 0;
    std::shared_ptr<ps::Shard> shard;  // null: its memory is not there yet, nor is `fetch`
    std::shared_ptr<StateFetch> fetch;
    std::vector<ps::Shard::MovePiece> own;  // copied from the shard of the layout that rules
  };

  // Feeds an event (called under the mutex, returns actions) and carries the actions out.
  template <class Event>
  void Turn(Event&& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::SendToChief action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::SendToWorker action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::CloseWorker action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::RejoinChief action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::ServePull action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::Finish action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::PreparePlace action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::DropPrepared action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::AdoptPrepared action) ABSL_LOCKS_EXCLUDED(mutex_);
  void Do(ps::LogLine action);
  void Do(ps::ApplyDecision action) ABSL_LOCKS_EXCLUDED(mutex_);
  template <class Job>
  void Do(Job action) ABSL_LOCKS_EXCLUDED(mutex_) {
    Queue(std::move(action));
  }
  void Queue(Work work) ABSL_LOCKS_EXCLUDED(mutex_);

  // The timer's thread.
  absl::Status Listen();
  void Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  // Does what is due.
  void Step() ABSL_LOCKS_EXCLUDED(mutex_);
  TimePoint NextWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseChief(TimePoint since, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckChief(TimePoint now, bool& connect, ps::Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

  // The apply thread.
  void ApplyLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::Initialise& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::Restore& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::AllocateSlot& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::FoldBucket& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::ComputeNorms& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::ApplyDecision& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::StartSnapshot& work) ABSL_LOCKS_EXCLUDED(mutex_);
  // ps_process_move.cc
  void Run(const ps::FillPlace& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const Adoption& work) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::ServeFetch& work) ABSL_LOCKS_EXCLUDED(mutex_);
  // What a session is served from; nullopt: it is over.
  struct Serving {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<ps::Shard> shard;  // null while the place changes
    Envelope envelope;
  };
  std::optional<Serving> ServingTo(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);
  // A pull that is answered bucket by bucket.
  struct Answering {
    ps::ServePull pull;
    Serving to;
  };
  std::vector<Answering> TakePullsOf(Version version) ABSL_LOCKS_EXCLUDED(mutex_);
  void RefusePull(Stream& stream, const Envelope& envelope, std::uint64_t request) const;
  void SendBucket(const Answering& answering, const ps::PinnedVersion& version, std::int32_t bucket);
  static absl::Status CopyOwn(const ps::Shard& from, ps::Shard& to, const std::vector<ps::Shard::MovePiece>& pieces);
  void Forget(std::uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);  // what was prepared; 0: whatever it is
  std::shared_ptr<ps::Shard> shard() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<ps::Shard>> NewShard(const ps::Place& place) ABSL_LOCKS_EXCLUDED(mutex_);

  // The side thread: what must not hold up the apply thread.
  void SideLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const SnapshotJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const ps::PreparePlace& work) ABSL_LOCKS_EXCLUDED(mutex_);
  SnapshotDone WriteSnapshot(const SnapshotJob& job);

  const PsOptions options_;
  RoundedVersions rounded_;
  const Incarnation former_;
  Transport& transport_;
  Storage& storage_;
  const Clock& clock_;
  const std::uint64_t nonce_;
  ThreadPool pool_;
  std::string address_;  // set before any stream exists
  std::unique_ptr<Listener> listener_;
  std::thread apply_thread_;
  std::thread side_thread_;

  Mutex mutex_;
  CondVar timer_, work_ready_, side_ready_, chief_closed_;
  ps::Server server_ ABSL_GUARDED_BY(mutex_);
  ps::Actions outbox_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;  // threads end
  bool stop_requested_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint stop_at_ ABSL_GUARDED_BY(mutex_) = kNever;
  std::optional<absl::Status> result_ ABSL_GUARDED_BY(mutex_);
  TimePoint timer_wakes_ ABSL_GUARDED_BY(mutex_) = TimePoint::min();  // min: it is awake
  std::shared_ptr<ps::Shard> shard_ ABSL_GUARDED_BY(mutex_);          // shared with copies and snapshots under way
  std::optional<Preparation> prepared_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> work_ ABSL_GUARDED_BY(mutex_);  // bounded by what Server lets be undone
  bool working_ ABSL_GUARDED_BY(mutex_) = false;   // somebody carries such work out
  bool versions_awaited_ = false;  // whoever carries it out: the newest version was asked for before it was there
  std::deque<SideWork> side_work_ ABSL_GUARDED_BY(mutex_);  // likewise

  std::uint64_t next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<SessionId, std::shared_ptr<Stream>> sessions_ ABSL_GUARDED_BY(mutex_);

  // The stream to the chief.
  std::shared_ptr<Stream> chief_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t connection_ ABSL_GUARDED_BY(mutex_) = 0;  // the newest attempt
  bool chief_open_ ABSL_GUARDED_BY(mutex_) = false;       // from Connect to OnClosed
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  bool had_place_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint away_since_ ABSL_GUARDED_BY(mutex_);
  WallTime away_since_wall_ ABSL_GUARDED_BY(mutex_);
  std::string away_reason_ ABSL_GUARDED_BY(mutex_);
  TimePoint next_attempt_ ABSL_GUARDED_BY(mutex_);
  TimePoint next_waiting_line_ ABSL_GUARDED_BY(mutex_);
  Renewal renewal_ ABSL_GUARDED_BY(mutex_);
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
};

template <class Event>
void PsProcess::Turn(Event&& event) {
  {
    MutexLock lock(mutex_);
    ps::Actions actions = event();
    std::move(actions.begin(), actions.end(), std::back_inserter(outbox_));
    if (draining_ || outbox_.empty()) return;
    draining_ = true;
  }
  Drain();
}

}  // namespace evenkeel
