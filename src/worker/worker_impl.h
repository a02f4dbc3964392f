// A worker's state and its parts: worker.cc (messages, connections, the loop) · warm_up.cc · worker_step.cc (pull,
// compute, stage) · worker_lives.cc (leaving, and joining again after a fence).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evenkeel/core/mutex.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"
#include "evenkeel/protocol/member_session.h"
#include "evenkeel/worker/worker.h"
#include "worker/batch_loader.h"
#include "worker/departure.h"
#include "worker/memory_bound.h"
#include "worker/self_timing.h"
#include "worker/server_link.h"
#include "worker/step_buffers.h"

namespace evenkeel::worker_internal {

// Each layer's pass, in the timeline.
class LayerTimeline final : public LayerObserver {
 public:
  void Begins(std::string_view layer, Pass pass) override;
  void Ended(std::string_view layer, Pass pass) override;

 private:
  TimePoint began_;
};

class Worker {
 public:
  Worker(const WorkerOptions& options, Transport& transport, const Clock& clock, StopSource& stop)
      : options_(options), transport_(transport), clock_(clock), stop_(stop) {}
  ~Worker();

  absl::Status Run();

 private:
  static constexpr int kNoPlace = -1;
  struct Link {
    ServerAddress server;
    int place = kNoPlace;                // in the layout that the links are for; guarded by mutex_
    bool said_down = false;              // that it is awaited
    std::unique_ptr<ServerLink> stream;  // last: its calls use the rest
  };

  // --- callbacks, from the transport's threads
  void OnChiefMessage(Message message);
  void OnServerMessage(const Link& link, Message message, const PayloadIn& payload);
  void OnPullData(const Link& link, const PullData& data, const PayloadIn& payload);
  void OnWelcome(const Welcome& welcome, const Envelope& envelope) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Supersede() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginToLeave(const std::string& reason);
  void Fail(const absl::Status& status);

  // --- the step loop's thread
  absl::Status OpenModel();
  absl::Status Connect();
  absl::Status WarmUp(std::int64_t samples, const std::vector<std::int64_t>& later);
  absl::Status Loop();
  absl::Status Step(const Ticket& ticket);
  void BeginPull(TimePoint when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PullAhead(const Ticket& ticket, Version next);
  absl::Status PullUntil(const Ticket& ticket, const std::function<bool()>& done);
  std::size_t StripeAt(std::size_t server, std::int32_t bucket) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return server * stripes_missing_.size() + static_cast<std::size_t>(bucket);
  }
  bool Here(int tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllPulled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AwaitTensor(const Ticket& ticket, int tensor);
  bool PulledWhole(const Ticket& ticket, bool wait);
  bool TornPull();
  void StageFinished(const Ticket& ticket, std::int64_t samples);
  ModelInput InputOf(const Batch& batch);
  absl::StatusOr<StepResult> Compute(const Ticket& ticket, const Batch& batch);
  absl::StatusOr<StepResult> ComputeOnOneVersion(const Ticket& ticket, const Batch& batch, TimePoint deadline);
  Pull PullOf(const Ticket& ticket, std::uint64_t request, Version version) const;
  // `offer`: without the payload, for which the server asks then.
  void StageBucket(UpdateId update, std::int64_t samples, int bucket, int server, bool offer);
  void StageWhatIsAskedFor();
  void KeepRest(UpdateId update);
  void StageAll(int server);
  void StageClosing(int server);
  absl::Status AwaitOutcome(UpdateId update);
  void ReadAhead();
  absl::Status LeaveInOrder();
  absl::Status Live();
  bool MayLiveAgain(const absl::Status& end);
  void BeginNewLife();
  // --- on the departure's thread
  void Announce();
  void GiveBack();
  std::shared_ptr<MemberSession> Session();
  std::string LeaveReason();
  bool Cancelled(UpdateId update);
  // Something that the step loop may wait for has changed.
  void NotifyLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    changes_.fetch_add(1, std::memory_order_release);
    changed_.NotifyAll();
  }
  // Waits for `done` (called under the lock), keeping the links up. Returns early, with end_, once that is set: ok
  // where the job ended well, so look at end_ too.
  absl::Status WaitFor(const std::string& what, TimePoint deadline, const std::function<bool()>& done,
                       bool needs_servers = true);
  absl::Status WatchLinks(const std::string& what, bool needs_servers, TimePoint now, TimePoint& attempt,
                          TimePoint& wake);
  absl::Status Divide(const Welcome& welcome, bool renewed);
  static std::unique_ptr<Link> TakeLink(std::vector<std::unique_ptr<Link>>& links, const ServerAddress& server);
  std::unique_ptr<Link> MakeLink(const ServerAddress& server, std::size_t place);
  void DropComing();
  void KeepWhatWasPulled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool AreUp(const std::vector<std::unique_ptr<Link>>& links);
  absl::Status FollowServers();
  void FollowLayoutToCome();
  bool LayoutToComeDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellDataPaths();
  void SayReady();
  void SeeMemory(const Batch& batch);
  std::int64_t MemorySamples() const;
  void TellMemory();
  absl::Status TimeMyself();
  bool AllUp() const;
  void Doing(const std::string& what) { session_->SetState(what); }
  int server_count() const { return static_cast<int>(links_.size()); }

  // Constant after construction.
  const WorkerOptions& options_;
  Transport& transport_;
  const Clock& clock_;
  StopSource& stop_;

  // The step loop's own.
  OpenedData data_;
  std::unique_ptr<Backend> backend_;
  LayerTimeline layer_timeline_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<BatchLoader> loader_;
  std::vector<std::unique_ptr<Link>> links_;
  LayoutNumber layout_;                         // in which the links stage and pull
  std::vector<std::unique_ptr<Link>> coming_;   // to servers that the layout to come has and this one has not
  std::optional<LayoutNumber> layout_to_come_;  // the chief is to be told once all of these are up
  std::shared_ptr<MemberSession> session_;      // set under mutex_; the departure's thread holds it while it speaks
  std::optional<UpdateId> requested_;           // from the loader, newest
  std::string data_paths_;                      // as the session was told
  Incarnation former_;                          // of the life before this one
  std::string job_id_;                          // that the lives before this one belonged to
  int fruitless_lives_ = 0;
  std::optional<Backoff> rejoin_backoff_;
  std::int64_t warm_samples_ = 0;  // the model has computed a batch of so many
  std::vector<std::uint64_t> row_keys_;
  CsrView sparse_;
  SelfTiming timing_;  // of this life
  MemoryBound memory_bound_;
  std::int64_t memory_seen_ = 0;  // samples that memory was held for when it was looked at last
  TimePoint memory_told_;
  BatchSizesSeen sizes_seen_;          // by this process's model
  std::vector<int> finished_buckets_;  // by the backward pass, not staged yet
  absl::Status pull_error_;            // of the step's computing, where nothing could be returned
  double waited_seconds_ = 0;          // for parameters, in the step's computing
  std::uint64_t rest_of_ = 0;          // sequence of the update whose rest the buffers keep; 0: none

  // Gradients that servers may ask for again: everything up to the outcome.
  struct Staging {
    UpdateId update;
    StepResult result;
    std::vector<Version> computed_on;  // by server
    std::int64_t samples = 0;          // of its ticket
    std::uint64_t feedback = 0;        // as Stage's
    bool offer = false;                // as Ticket's
  };

  Mutex mutex_;
  CondVar changed_;
  std::atomic<std::uint64_t> changes_{0};                    // times that NotifyLoop was called; written under mutex_
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // the job or the session is over
  std::optional<Welcome> welcome_ ABSL_GUARDED_BY(mutex_);
  Term term_ ABSL_GUARDED_BY(mutex_);               // of the chief that sent it
  bool ready_due_ ABSL_GUARDED_BY(mutex_) = false;  // after each Welcome, once all servers are connected
  Generation generation_ ABSL_GUARDED_BY(mutex_);   // of welcome_, as is the layout
  LayoutNumber welcome_layout_ ABSL_GUARDED_BY(mutex_);
  bool servers_moved_ ABSL_GUARDED_BY(mutex_) = false;  // by welcome_; not looked at yet
  bool renewed_ ABSL_GUARDED_BY(mutex_) = false;        // a new incarnation says hello everywhere
  bool stop_asked_ ABSL_GUARDED_BY(mutex_) = false;
  std::string leave_reason_ ABSL_GUARDED_BY(mutex_);       // empty: the stop's
  bool nothing_binds_ ABSL_GUARDED_BY(mutex_) = false;     // any more, as the chief has said; or it can't be told
  TimePoint leave_by_ ABSL_GUARDED_BY(mutex_) = kNever;    // what is not decided then is given back
  TimePoint step_began_ ABSL_GUARDED_BY(mutex_) = kNever;  // kNever: all is staged
  double step_seconds_ ABSL_GUARDED_BY(mutex_) = 0;        // smoothed; 0: none yet
  bool committed_ ABSL_GUARDED_BY(mutex_) = false;         // something, in this life
  std::string waits_for_ ABSL_GUARDED_BY(mutex_);          // whom the job waits for, as the chief said last
  std::optional<ConnectAhead> connect_ahead_ ABSL_GUARDED_BY(mutex_);  // not looked at yet
  std::optional<Ticket> bound_ ABSL_GUARDED_BY(mutex_);                // to be computed next
  std::optional<Ticket> ahead_ ABSL_GUARDED_BY(mutex_);                // provisional: its input may be read
  std::optional<UpdateId> current_ ABSL_GUARDED_BY(mutex_);            // in the step loop's hands
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);             // of current_
  Staging staging_ ABSL_GUARDED_BY(mutex_);
  bool rest_in_doubt_ ABSL_GUARDED_BY(mutex_) = false;  // what rounding took from the update that rest_of_ names
  // When to stage everything once more, by server: at once on a fresh stream, after a pause when it said retry.
  std::vector<TimePoint> restage_at_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int, std::int32_t>> missing_ ABSL_GUARDED_BY(mutex_);  // server, bucket: as they asked
  std::uint64_t pull_request_ ABSL_GUARDED_BY(mutex_) = 0;
  TimePoint pull_began_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> pulled_ ABSL_GUARDED_BY(mutex_);             // by server, for pull_request_
  std::vector<TimePoint> pull_at_ ABSL_GUARDED_BY(mutex_);       // when to ask (again), by server
  std::vector<Version> pulled_version_ ABSL_GUARDED_BY(mutex_);  // by server, of what it has sent for pull_request_
  std::vector<bool> stripe_here_ ABSL_GUARDED_BY(mutex_);        // by server and bucket
  std::vector<int> stripes_missing_ ABSL_GUARDED_BY(mutex_);     // by bucket
  int placing_ ABSL_GUARDED_BY(mutex_) = 0;                      // calls that write what servers sent into the buffers
  CondVar none_placing_;
  bool torn_pull_ ABSL_GUARDED_BY(mutex_) = false;  // a server began anew, with another version: nothing of it counts
  std::optional<Version> asked_ahead_ ABSL_GUARDED_BY(mutex_);  // what pull_request_ is for, before any ticket is

  Departure departure_{clock_, [this] { Announce(); }, [this] { GiveBack(); }};  // last: its thread uses the rest
};

}  // namespace evenkeel::worker_internal
