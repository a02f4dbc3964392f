// The decisions of a parameter server: which messages are obeyed, what is staged, sealed, applied and answered.
//
// Pure: reads no clock, starts no thread, does no I/O and sees no floats. Events and `now` go in; actions come out and
// are to be carried out in the order given. Initialise, Restore, AllocateSlot, FoldBucket, ComputeNorms, ApplyDecision,
// StartSnapshot, FillPlace (but for what others send), AdoptPrepared and ServeFetch form one queue: each begins after
// the one before it has ended and been reported. PreparePlace and DropPrepared are outside it.
//
// Threading: none; one caller at a time.
// Time:      always passed in.
// Limits:    ServerOptions. What is over a limit is refused with kRetry.
// Errors:    a contradiction (a decision that differs from the sealed set, a broken hash chain) gives Finish with a
//            status that names the difference; after Finish no event has any effect.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "evenkeel/core/clock.h"
#include "evenkeel/core/log.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/protocol/messages.h"
#include "evenkeel/ps/fold.h"
#include "evenkeel/ps/held_pulls.h"
#include "evenkeel/ps/set_index.h"

namespace evenkeel::ps {

// What this server holds.
struct Place {
  std::shared_ptr<const ParameterLayout> layout;  // shared with the memory that is cut by it
  ServerIndex server;
  OptimizerSpec optimizer;
  bool measure_gradients = false;
  std::uint32_t stage_slots = 0;  // 0: one a worker
};

struct SendToChief {
  Message message;
};
struct SendToWorker {
  SessionId session;
  Message message;
};
// After what was sent.
struct CloseWorker {
  SessionId session;
};
// Ends the stream to the chief and joins anew, after a delay.
struct RejoinChief {
  std::string reason;
};
// Drop all memory of the former place, take the new one. Answered by OnConfigured.
struct Initialise {
  Place place;
  std::uint64_t seed = 0;
  Version version;
};
struct Restore {
  Place place;
  std::string model_dir;
  Version checkpoint;
  Version version;  // what to publish
};
// Answered by OnSlotReady.
struct AllocateSlot {
  StageSlot slot;
};
// Beside what there is, while training goes on: memory for a place in a layout to come, and streams to the servers of
// the one that rules, as far as they hold any of it. Answered by OnPrepared, at any time.
struct PreparePlace {
  std::uint64_t number = 0;  // of this preparation
  Place place;
  std::shared_ptr<const ParameterLayout> from;  // the layout that rules
  std::optional<ServerIndex> own;               // this server's place there
  std::vector<ServerAddress> sources;           // in its order
  Envelope envelope;                            // for Hello and Fetch
};
// What was prepared gets what belongs there of this version: what this server holds itself is copied first, then others
// send. Answered by OnFilled, at any time.
struct FillPlace {
  std::uint64_t number = 0;
  Version version;
};
struct DropPrepared {
  std::uint64_t number = 0;
};
// What was filled takes the place of what there is, and publishes the version. Answered by OnConfigured.
struct AdoptPrepared {
  std::uint64_t number = 0;
  Version version;
};
// Send the ranges to another server. Requires that the memory is at fetch.version.
struct ServeFetch {
  SessionId session;
  Fetch fetch;
};
// Add what lies in `slots` to slot 0, in this order. Answered by OnFolded.
struct FoldBucket {
  std::uint64_t configuration = 0;
  FoldStep step;
  std::int32_t positions = 0;  // of the set
  absl::InlinedVector<StageSlot, 8> slots;
};
// Squared sums of blocks of the summed gradient. Answered by OnNorms.
struct ComputeNorms {
  SetNumber set;
  std::uint32_t attempt = 0;
  std::vector<StageSlot> slots;  // rank order
};
// Make and publish decision.version. Answered by OnApplied.
struct ApplyDecision {
  Decision decision;
  std::vector<StageSlot> slots;  // rank order; folded: the one that holds the sum
  bool folded = false;
};
// Keep the version as it is now, write it aside. Answered by OnSnapshotWritten.
struct StartSnapshot {
  Snapshot snapshot;
};
// Send the newest published version, stripe by stripe.
struct ServePull {
  SessionId session;
  std::uint64_t request = 0;
  bool bfloat16 = false;  // as Pull's
};
// The end, for better or worse.
struct Finish {
  absl::Status status;
};
struct LogLine {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
using Action = std::variant<SendToChief, SendToWorker, CloseWorker, RejoinChief, Initialise, Restore, AllocateSlot,
                            ComputeNorms, ApplyDecision, StartSnapshot, ServePull, Finish, LogLine, PreparePlace,
                            FillPlace, DropPrepared, AdoptPrepared, ServeFetch, FoldBucket>;
using Actions = std::vector<Action>;

// Leave to write one stripe into a slot. While it is held, nothing else writes that stripe.
struct StageWrite {
  std::uint64_t configuration = 0;
  StageSlot slot;
  UpdateId update;
  std::uint32_t attempt = 0;
  std::int32_t bucket = 0;
  bool closing = false;
  SessionId session;
  std::int64_t mean_of = 0;  // as Stage's: the payload is to be expanded
  std::uint32_t set_attempt = 0;
};
struct StageAnswer {
  std::optional<StageWrite> write;  // bring the payload there, then call EndStage
  Actions actions;
};

struct ServerOptions {
  std::string name;           // "ps:0"
  std::string spec_hash;      // 64 hex digits
  std::string chief_address;  // only to name it; may be empty
  std::size_t max_sessions = 1 << 14;
  std::size_t max_held_pulls = 16;  // a session
  std::size_t max_sets = 1 << 14;
  std::size_t max_future_decisions = 256;
  std::size_t max_kept_decisions = 1 << 16;
  // Finished updates remembered, for what is sent again: a stage older than that is void by its worker's sequence.
  std::size_t max_finished = 1 << 14;
  std::size_t max_fenced = 1 << 16;  // incarnations remembered
  Duration max_pull_wait = std::chrono::minutes(10);
};

class Server {
 public:
  explicit Server(ServerOptions options);

  Actions OnChiefMessage(const Message& message, TimePoint now);
  // Hello, Pull and Fetch; anything else but Stage is refused.
  Actions OnWorkerMessage(SessionId session, const Message& message, TimePoint now);
  // A Stage and the length of its payload. Duplicates, late and foreign ones give no write.
  StageAnswer BeginStage(SessionId session, const Envelope& envelope, const Stage& stage, std::size_t payload_bytes,
                         TimePoint now);
  // `whole`: the stripe is written; else its bytes did not come, and it is missing as before.
  Actions EndStage(const StageWrite& write, bool whole, TimePoint now);
  Actions OnWorkerClosed(SessionId session, TimePoint now);

  Actions OnConfigured(Version version, const absl::Status& status, TimePoint now);
  Actions OnSlotReady(StageSlot slot, const absl::Status& status, TimePoint now);
  Actions OnFolded(std::uint64_t configuration, const FoldStep& step, TimePoint now);
  Actions OnNorms(SetNumber set, std::uint32_t attempt, std::vector<BlockNorm> norms, TimePoint now);
  // The pulls that wait for `version`, the one that is being applied, and are to be answered as it is made; they wait
  // no longer here.
  std::vector<ServePull> TakePullsOf(Version version);
  // `squared_sums`: as Shard::Apply gave them.
  Actions OnApplied(Version version, double apply_seconds, std::vector<double> squared_sums, TimePoint now);
  Actions OnPrepared(std::uint64_t number, const absl::Status& status, TimePoint now);
  // A piece of what is filled has come: the chief is told with the next renewal, and waits on.
  Actions OnPiece(std::uint64_t number, TimePoint now);
  Actions OnFilled(std::uint64_t number, const absl::Status& status, TimePoint now);
  // Asks the chief to have the stripes moved to others; Finish follows once it lets this server go.
  Actions AskToLeave(const std::string& reason, TimePoint now);
  // An error in `done` is the chief's to judge.
  Actions OnSnapshotWritten(const SnapshotDone& done, TimePoint now);

  // Refuses the pulls whose deadline has passed.
  Actions Tick(TimePoint now);
  TimePoint NextDeadline() const;

  // What goes on every message of this server.
  Envelope MakeEnvelope() const;
  bool fenced() const { return fenced_itself_; }  // it is over: the chief takes it for gone
  // What the process does or waits for.
  Renew State(TimePoint now) const;
  // How often the chief wants a Renew; 0 before the first Welcome.
  bool welcomed() const { return welcomed_; }
  bool ended() const { return ended_; }
  // Its stripes are with others.
  bool released() const { return released_; }
  Version published() const { return published_; }
  // For Join: what a chief that was started again can go on with.
  Holding Holds() const;
  // Decisions that no durable checkpoint covers yet, oldest first.
  const std::deque<Decision>& kept_decisions() const { return kept_; }

 private:
  // Offered: the worker has it, and is asked for it (kAsked) once there is room.
  enum class BucketState : std::uint8_t { kMissing, kOffered, kAsked, kWriting, kReceived };
  struct Staging {
    UpdateId update;
    std::uint32_t attempt = 0;
    bool placed = false;  // in `slot`; else its set has not been ordered here yet
    StageSlot slot;
    std::int32_t position = -1;     // in a folded set
    std::uint32_t set_attempt = 0;  // likewise
    std::vector<BucketState> buckets;
    int received = 0;          // of the non-empty stripes
    std::int64_t samples = 0;  // that the first message to say so says
    bool complete = false;
    std::optional<Stage> closing;
    SessionId ack_session;  // gets a StageAck on completion
    bool ack_owed = false;
  };
  struct Worker {
    std::string name;
    bool live = true;               // false: fenced, kept for its complete update's sake
    std::optional<StageSlot> slot;  // its own, where it has one
    std::optional<Staging> staging;
    std::uint64_t next_sequence = 0;  // above every update that was staged, decided or dropped
  };
  struct Slot {
    bool ready = false;
    int writers = 0;
    int readers = 0;    // sums in progress
    Incarnation owner;  // 0: free
  };
  struct SealSet {
    enum class State { kWaiting, kNorms, kAnswered };
    std::uint32_t attempt = 0;
    std::vector<UpdateId> updates;
    bool folded = false;
    std::vector<StageSlot> slots;  // by update, where workers have none of their own
    std::size_t missing = 0;       // of them, that have not become complete here since it was ordered
    State state = State::kWaiting;
    std::vector<BlockNorm> norms;
  };
  struct Session {
    Incarnation incarnation;
  };
  struct InFlight {
    Version version;
    std::uint64_t hash = 0;
    std::vector<StageSlot> slots;
  };
  struct NormsInFlight {
    SetNumber set;
    std::uint32_t attempt = 0;
    std::vector<StageSlot> slots;
  };
  struct PendingAck {
    MembershipEpoch epoch;
    std::vector<StageSlot> waits_for;
  };
  // A place in a layout to come.
  struct Preparation {
    std::uint64_t number = 0;
    Generation generation;
    LayoutNumber layout;
    Place place;
    bool own = false;                // this server holds a part
    bool ready = false;              // to be filled
    std::optional<Version> version;  // of Fill
    std::int64_t pieces = 0;         // that have come of it
    bool filled = false;
  };

  // Ends an event: notes the state and hands the actions over.
  Actions Take(TimePoint now);
  std::string StateText() const;
  void ToChief(Body body);
  void ToWorker(SessionId session, Body body);
  void RefuseWorker(SessionId session, RefuseReason reason, std::string text, UpdateId update = {});
  void RefuseChief(RefuseReason reason, std::string text);
  void Say(LogLevel level, std::string text);
  void Fail(absl::Status status);

  // server_layout.cc
  bool Overtaken(const Envelope& envelope, LayoutNumber to_come) const;
  template <class Answer>
  void EndPreparing(std::uint64_t number, bool Preparation::*done, const absl::Status& status);
  void OnPrepare(const Envelope& envelope, const Prepare& prepare);
  void OnFill(const Envelope& envelope, const Fill& fill);
  void OnSwitch(const Envelope& envelope, const Switch& order);
  void OnLeaveNow(const LeaveNow& order);
  void DropPreparation();

  // server_chief.cc
  bool AcceptChiefEnvelope(const Message& message);
  void OnWelcome(const Envelope& envelope, const Welcome& welcome);
  void OnRefuse(const Refuse& refuse);
  void OnWaiting(const Waiting& waiting);
  void OnConfigure(const Envelope& envelope, const Configure& configure);
  void OnContinue(const Continue& order);
  void MaybeConfirmContinue();
  void SetPlace(const Envelope& envelope, Place place, Version version);
  void OnReadDecisions(const ReadDecisions& request);
  void OnMembers(const Members& members);
  void OnJobEnd(const JobEnd& end);
  void StartTerm(Term term);
  void ResetPlace();
  void SendConfigured();
  void Resend();
  void FlushMembersAcks();
  void Admit(const Member& member, std::vector<StageSlot>& new_slots);
  bool SharesSlots() const { return place_.stage_slots > 0; }
  // Of those that are shared, as many as there are workers for: adds the ones to wait for.
  void GiveSharedSlots(std::vector<StageSlot>& new_slots);
  void AllocateSharedSlots(std::size_t wanted);
  void Fence(Incarnation incarnation);

  // server_commit.cc
  void OnSeal(const Seal& seal);
  void OnDrop(const Drop& drop);
  void OnDecision(const Decision& decision);
  void OnSnapshot(const Snapshot& snapshot);
  void AcceptDecision(const Decision& decision);
  // Empty when the decision is what was sealed.
  std::string DifferenceFromSealed(const Decision& decision) const;
  void CheckSet(SetNumber number, SealSet& set);
  // What is to be added up for the set, which is complete here.
  std::vector<StageSlot> SlotsOf(const SealSet& set) const;
  static std::vector<StageSlot> SharedSlots(const std::vector<UpdateId>& updates, const SealSet& former);
  std::size_t SlotsFor(const SealSet& set) const;
  // Those of the set's updates that are here already get their room, in a folded set anew.
  void PlaceStagings(SetNumber number, const SealSet& set);
  void CompleteWhatHoldsNothing(const std::vector<UpdateId>& updates);
  void AnswerSeal(SetNumber number, const SealSet& set);
  void EraseFinishedSets(const std::vector<UpdateId>& finished);
  void ClearSets();

  // server_worker.cc
  struct Refusal {
    RefuseReason reason;
    std::string text;
  };
  std::optional<Refusal> CheckJob(const Envelope& envelope) const;
  std::optional<Refusal> CheckPlace(const Envelope& envelope) const;
  // kRetry for a worker that may be admitted yet, kStaleIncarnation for one that is dead.
  std::optional<Refusal> CheckIncarnation(const Envelope& envelope) const;
  void OnHello(SessionId session, const Envelope& envelope, const Hello& hello);
  void OnFetch(SessionId session, const Envelope& envelope, const Fetch& fetch);
  void OnPull(SessionId session, const Envelope& envelope, const Pull& pull, TimePoint now);
  void ServeHeldPulls();
  void EraseSession(SessionId session);
  bool OpenStaging(SessionId session, Worker& worker, const Stage& stage);
  void FindPlace(Staging& staging) const;
  bool HasRoom(const Staging& staging, std::int32_t bucket) const;
  void FoldWhatCame(std::int32_t bucket);
  // For the payloads of what was offered and has room now: all buckets of all updates, or one of some.
  void AskForOffered();
  void AskForOffered(std::int32_t bucket, std::int32_t first, std::int32_t last);
  void Ask(Worker& worker, std::vector<std::int32_t> buckets);
  bool SamplesAgree(SessionId session, Staging& staging, const Stage& stage);
  std::optional<StageWrite> Receive(SessionId session, Worker& worker, const Stage& stage);
  void TryComplete(Worker& worker);
  void SendStageAck(SessionId session, Staging& staging);
  void SendStaged(const Staging& staging);
  void FinishUpdate(const UpdateId& update, bool decided);
  bool IsFinished(const UpdateId& update) const { return finished_.contains(update); }
  Worker* Find(Incarnation incarnation);
  const Staging* FindComplete(const UpdateId& update) const;
  std::optional<StageSlot> GiveSlot(Incarnation owner);  // the slot to wait for, if it is new
  void MaybeReleaseSlot(Incarnation incarnation);
  void ReadersDone(const std::vector<StageSlot>& slots);

  const ServerOptions options_;
  Actions actions_;
  bool ended_ = false;
  bool released_ = false;
  bool fenced_itself_ = false;

  // Who we are.
  bool welcomed_ = false;
  std::string job_id_;
  Term term_;
  Incarnation incarnation_;
  std::string state_text_;
  std::string waits_for_;  // whom the job waits for, as the chief said last
  TimePoint state_since_{};

  // Our place.
  bool configuring_ = false;
  bool configured_ = false;
  std::uint64_t configuration_ = 0;
  Generation generation_;
  LayoutNumber layout_number_;
  Term place_term_;             // of the chief that gave us this place, or goes on with it
  bool continue_owed_ = false;  // Configured, once no snapshot for an earlier chief is under way
  Place place_;
  Version start_version_;
  std::vector<std::int64_t> stripe_bytes_;  // by bucket
  int stripes_ = 0;                         // not empty

  std::optional<Preparation> prepared_;
  std::uint64_t preparations_ = 0;
  std::string leave_asked_;  // the reason; empty: not asked

  // Workers.
  MembershipEpoch members_epoch_;
  bool members_known_ = false;  // this term's chief has named all of them, of which the rest are changes
  std::map<Incarnation, Worker> workers_;
  Incarnation highest_seen_;
  absl::flat_hash_set<Incarnation> fenced_;
  std::deque<Incarnation> fenced_order_;
  std::vector<Slot> slots_;
  std::set<StageSlot> free_slots_;
  std::deque<PendingAck> pending_acks_;
  std::map<SessionId, Session> sessions_;
  absl::flat_hash_map<Incarnation, SessionId> session_of_;
  HeldPulls held_pulls_;

  // Updates.
  absl::flat_hash_map<UpdateId, bool> finished_;  // true: decided, false: dropped
  std::deque<UpdateId> finished_order_;
  std::map<SetNumber, SealSet> sets_;
  SetIndex sets_of_;
  std::deque<NormsInFlight> norms_in_flight_;
  Fold fold_;
  SetNumber folded_set_;     // that fold_ is of
  bool said_folds_ = false;  // in this place

  // Decisions.
  Version published_;
  std::uint64_t published_hash_ = 0;
  double published_seconds_ = 0;
  std::vector<double> published_squared_sums_;
  CommitNumber decided_;
  std::uint64_t decided_hash_ = 0;
  bool chain_known_ = false;  // decided_hash_ is that of decided_
  std::deque<InFlight> applying_;
  std::map<CommitNumber, Decision> future_;
  std::deque<Decision> kept_;

  // Snapshots.
  std::map<CommitNumber, Snapshot> future_snapshots_;
  std::optional<Version> snapshotting_;
  std::optional<SnapshotDone> last_snapshot_;
};

}  // namespace evenkeel::ps
