// The chief's state and its parts; each part's functions stand in a file of its own:
// chief.cc (events, envelopes) · membership.cc (workers) · server_membership.cc · layout_change.cc (which servers
// share the parameters) · name_claims.cc (two processes of one name) · recovery.cc (restarts, rollbacks) · steps.cc
// (tickets, seals, commits) · batch_timing.cc (what steps take) · gradient_norms.cc (what servers measure) · ending.cc
// (checkpoints, the end) · chief_status.cc.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "chief/batch_controller.h"
#include "chief/batch_split.h"
#include "chief/global_batch.h"
#include "chief/gradient_noise.h"
#include "chief/learning_rate.h"
#include "chief/lease_table.h"
#include "chief/sample_ledger.h"
#include "chief/update_table.h"
#include "chief/worker_table.h"
#include "evenkeel/chief/chief.h"
#include "evenkeel/protocol/layout.h"
#include "nlohmann/json_fwd.hpp"

namespace evenkeel {

constexpr int kMaxUnappliedDecisions = 64;
constexpr std::size_t kEndedNoncesKept = 1024;
constexpr std::size_t kTotalsKept = 256;
inline constexpr char kOtherWorkers[] = "others";
// Why an incarnation ends when one of its name joins.
inline constexpr char kBeginsAnew[] = "its process begins anew";
inline constexpr char kNameTakenOver[] = "it is not connected, and a new process has come with its name";
// Members come back to a restarted chief within their longest pause between two attempts, 2 s, and some.
constexpr Duration kFormerMayReturn = std::chrono::seconds(3);
constexpr std::size_t kMaxSpareServers = 64;
constexpr std::size_t kMemberEventsKept = 64;
constexpr std::size_t kMaxComing = 64;
constexpr std::size_t kDroppedKept = 1 << 14;

struct ServerState {
  std::string name;  // "ps:0"
  std::string address;
  std::uint64_t nonce = 0;
  Incarnation incarnation;  // 0: has not joined
  SessionId session;        // 0: not connected
  bool configured = false;
  bool lost = false;     // one of this name was; a spare may take its place
  bool leaving = false;  // once its stripes have moved to others
  bool let_go = false;   // and was told that it may
  std::int64_t owned_floats = 0;
  Holding holding;  // when it joined
  CommitNumber applied;
  MembershipEpoch acked;
  std::string state;
  std::optional<TimePoint> state_since;  // as the member said with its last renewal
};

// Sums over the job's surviving commits, kept for the summary when a worker has gone. Checkpoints hold them, and the
// log's commits are added to that; only what step reports said since the checkpoint is lost with a chief.
struct WorkerTotals {
  std::int64_t commits = 0, samples = 0, steps = 0;
  double step_seconds = 0;
};

// Servers prepare for a layout to come while training goes on; it pauses once all are prepared, until all are filled.
struct LayoutMove {
  LayoutNumber layout;
  std::vector<Incarnation> members;  // in its order
  std::set<Incarnation> prepared;
  std::set<Incarnation> connected;   // workers with streams to all of them
  TimePoint connect_until = kNever;  // others are not waited for any more
  bool ready = false;                // from then on nothing is bound, but while a checkpoint is under way
  bool filling = false;              // nothing is decided meanwhile
  std::set<Incarnation> filled;
  std::map<Incarnation, std::int64_t> pieces;  // that members say have come; while more come, they are waited for
  const std::set<Incarnation>& done() const { return filling ? filled : prepared; }
  TimePoint deadline = kNever;
};

// What has happened to a member, for whoever watches.
struct MemberEvent {
  std::uint64_t number = 0;  // counts in this chief's life
  std::string kind;          // admitted, left, fenced
  std::string text;
};

// Of a process that came with the name of a member that is connected: that one is gone and could not say so, and its
// lease will end; or it lives, and renews its lease.
struct NameClaim {
  SessionId session;
  Join join;
  TimePoint until{};  // then it is refused, whatever the holder does
  int renewals = 0;   // the holder's since then; those that come all at once, as of a dead machine's queue, are one
  TimePoint counted{};
};

// Until when the job stands still, what happens then, and what would spare it that.
struct WaitingEnd {
  TimePoint at = kNever;
  const char* then = "";
  const char* unless = "";
};

// Squared sums of a commit's gradients, as far as servers have told them.
struct MeasuredStep {
  Version version;
  std::vector<std::pair<Incarnation, std::int64_t>> updates;  // worker and samples, rank order
  std::vector<std::vector<double>> by_server;                 // as in Applied; empty: not told
};

// The same of all servers together.
struct StepNorms {
  std::vector<UpdateNorm> updates;
  double squared_sum = 0;
};

struct CheckpointInProgress {
  Manifest manifest;                           // frozen at its version; parts filled in as they come
  std::optional<StepNorms> norms;              // of its own commit, once learnt from
  std::vector<std::optional<PartInfo>> parts;  // by server
  std::string failure;                         // of any part: not to be written
  bool writing_manifest = false;
};

enum class Phase {
  kGathering,    // for servers and the first worker
  kReading,      // after a restart: the decisions that the log has lost
  kConfiguring,  // servers take their stripes
  kRunning,
  kEnding,  // last checkpoint
  kFinalScore,
  kEnded,
};
const char* ToString(Phase phase);

struct Chief::Impl {
  explicit Impl(ChiefOptions o);

  // --- chief.cc
  void Dispatch(SessionId session, Message& message);
  bool CheckEnvelope(SessionId session, const Message& message);
  void Send(SessionId session, Body body);
  void SendToServers(const Body& body);
  void RefuseSession(SessionId session, RefuseReason reason, std::string message, bool close);
  void Say(std::string text, LogLevel level = LogLevel::kInfo);
  void AppendLog(LogRecord record);
  void AnswerOrder(SessionId session, const std::string& order, OrderReply reply);
  // Lets everything happen that can happen now.
  void Advance();
  void MakeUpForGap();
  void CheckDeadlines();
  // Sets the phase's deadline.
  void Await(Duration time);

  // --- membership.cc
  void OnJoin(SessionId session, Join& join);
  void OnWorkerJoin(SessionId session, Join& join);
  bool AdoptOrCompareModel(SessionId session, const Join& join);
  bool CheckResume();
  void OnReady(SessionId session, const Ready& ready);
  void BeginToLeave(const WorkerState& worker, const std::string& reason);
  OrderReply OnDrain(const std::string& name);
  void OnRenew(SessionId session, const Envelope& envelope, const Renew& renew);
  double WeightOf(const std::string& worker) const;
  std::size_t ListedPlace(const std::string& worker) const;
  std::int64_t ExpectedMembers(const WorkerState& worker) const;
  std::int64_t ExpectedBatch(const WorkerState& worker) const;
  std::vector<std::int64_t> LikelyLater(const WorkerState& worker, std::int64_t first) const;
  void WelcomeWorker(const WorkerState& worker);
  void ResumeWorkerSession(const WorkerState& worker);
  void AdmitReady();
  void Fence(Incarnation incarnation, const std::string& reason, bool orderly);
  void ForgetTotals(const std::string& name);
  // Also of a worker that is no member any more.
  std::string NameOfWorker(Incarnation incarnation) const;
  void CountCommitted(Incarnation incarnation, std::int64_t samples);
  void NoteMember(const char* kind, const std::string& text);
  void NoteComing(const std::string& name);
  bool FirstGrantMayCome();
  static bool IsAway(const WorkerState& worker);
  std::string MissingMembers() const;
  std::string WhatJoinersDo() const;
  Waiting WaitingNow() const;

  // --- server_membership.cc
  void OnServerJoin(SessionId session, Join& join);
  void OnConfigured(ServerState& server, const Envelope& envelope, const Configured& configured);
  void ConfigureServers();
  std::vector<ServerAddress> ServerAddresses() const;
  void ResumeServerSession(ServerState& server);
  void WelcomeServer(const ServerState& server);
  void BringUpServer(ServerState& server);
  void LoseServer(ServerState& server, const std::string& reason, bool orderly = false);
  ServerState* ServerBySession(SessionId session);  // also those that are in no layout
  bool InLayout(const ServerState& server) const {
    return &server >= servers.data() && &server < servers.data() + servers.size();
  }
  ServerIndex PlaceOf(const ServerState& server) const {
    return ServerIndex(static_cast<std::uint32_t>(&server - servers.data()));
  }

  // --- name_claims.cc
  void ClaimName(SessionId session, Join& join, Incarnation holder);
  void HolderRenewed(Role role, const std::string& name);
  void RefuseClaim(const NameClaim& claim, const std::string& why);
  void SettleClaims();
  void EndClaims();
  // Of the member of this role and name that is connected; Incarnation{}: none is.
  Incarnation ConnectedHolder(Role role, const std::string& name);

  // --- layout_change.cc
  void TakeUpLayout();
  void NextLayout();
  void SeatServers();
  std::optional<std::vector<Incarnation>> WantedLayout() const;
  void ChangeLayout();
  void SendPrepare(const ServerState& server);
  void OnPrepared(const ServerState& server, const Prepared& prepared);
  void OnFilled(const ServerState& server, const Filled& filled);
  void OnPieces(const ServerState& server, std::int64_t pieces);
  bool AwaitedInMove(const ServerState& server) const;
  bool WorkersConnectedAhead();
  void SendConnectAhead(const WorkerState& worker);
  void OnConnectedAhead(const WorkerState& worker, const ConnectedAhead& connected);
  void BeginMove(std::vector<Incarnation> members);
  void FillPlaces();
  void SwitchLayout();
  void DropMove();
  void AbandonMove(const std::string& reason);
  void FailMove(const std::string& reason);
  void ForgetFailedMoves();
  std::vector<std::string> NamesOf(const std::vector<Incarnation>& members);
  bool PartOfMove(Incarnation server) const;
  void OnServerLeave(ServerState& server, const Leave& leave);
  bool NoServerStays(const std::string& without = "") const;
  void LetAllServersGo();
  void LetServerGo(ServerState server);
  void EndSpare(Incarnation incarnation, const std::string& reason, bool orderly);
  ServerState* FindServer(Incarnation incarnation);
  ServerState* FindServer(const std::string& name);
  OrderReply OnDrainServer(const std::string& name);
  OrderReply OnScale(std::uint32_t count);

  // --- recovery.cc
  void OpenTerm(std::int64_t unix_ms);
  void FenceFormer();
  void BeginAnew();
  void ForgetTraining();
  absl::Status TakeUpLog();
  absl::Status Adopt(const Decision& decision);
  bool HoldsLine(const Holding& holding, ServerIndex place) const;
  bool AwaitsFormer() const;
  TimePoint FormerAwaitedUntil() const;
  void TakeUpServers();
  bool HashesAgree();
  void OnKeptDecisions(ServerState& server, const KeptDecisions& kept);
  void ContinueServers();
  bool ServersHoldMore() const;
  void RollBack(const std::string& reason);

  // --- steps.cc
  void OnStaged(ServerState& server, Staged& staged);
  void OnSealed(ServerState& server, Sealed& sealed);
  void OnApplied(ServerState& server, const Applied& applied);
  void OnStepReport(SessionId session, const StepReport& report);
  void ResolveFenced();
  void DropUpdates(const std::vector<UpdateId>& ids, const std::string& reason);
  void ChooseWithBackups();
  void SendSeal(SetNumber number);
  void PaceFolded(SetNumber number);
  std::uint32_t StageSlots(std::size_t count) const;
  bool CommitNext();
  void Commit(SetNumber number);
  void FillRow(CommitRow& row, const Decision& decision) const;
  CommitRow RowOfAdopted(const Decision& decision) const;
  void MeasureRate(std::int64_t committed);
  double ClipScale(const SetState& set, std::int64_t samples) const;
  void Grant();
  bool PlannedForMembers() const;
  bool PlannedStepStands();
  void PlanAhead(bool again = false);
  void PlanAheadAgain();
  void GrantBsp(bool planned);
  void GrantAsync();
  std::optional<Share> CutShare(const WorkerState& worker, Epoch epoch, std::int64_t count);
  std::vector<Share> PlanStep(bool* last_of_epoch, bool again = false);
  void BindShare(const WorkerState& worker, Share share, SetNumber set, bool known, bool offer);
  void SendProvisional(const WorkerState& worker, Share share);
  void ReleaseProvisional();  // of all
  void ReleaseProvisional(const WorkerState& worker);
  std::optional<Share> TakeProvisional(const WorkerState& worker);
  std::int64_t AsyncBatch(const WorkerState& worker);
  std::int64_t LeastBatch() const;
  // Of a step that nothing cuts short.
  std::int64_t StepSamples() const { return std::min(global_batch.size(), samples); }
  void SayBounds(std::string text);
  std::map<Incarnation, std::int64_t> CutBatch(std::int64_t total, bool again = false);
  bool BindIdle(const WorkerState& worker);
  bool MayBindMore() const;
  Duration TicketTime(const WorkerState& worker, std::int64_t samples) const;

  // --- batch_timing.cc
  UpdateTiming TimingOf(const WorkerState& worker, const Share& share) const;
  void TimeReported(const UpdateState& update, const StepReport& report);
  void TimeStaged(const UpdateState& update);
  void Measure(const Share& share, UpdateTiming& timing);
  void TimeDecided(UpdateState& update);
  void TimeDropped(const UpdateState& update);
  void JoinBatches(const WorkerState& worker);
  bool PlanStands();
  std::string BatchesLine() const;
  bool ByStaleness() const;
  void TimeByStaleness(const UpdateState& update, std::int64_t staleness);
  void EvictSlowest();

  // --- gradient_norms.cc
  void ExpectNorms(const Decision& decision);
  void OnNorms(const ServerState& server, const Applied& applied);
  void LearnNorms();
  void LearnNorms(const StepNorms& norms);
  static std::optional<StepNorms> NormsOf(const MeasuredStep& step);

  // --- ending.cc
  void NoteCheckpointDue(bool epoch_completed);
  void StartCheckpoint();
  Manifest FreezeManifest() const;
  void OnSnapshotDone(ServerState& server, const SnapshotDone& done);
  void ManifestWritten(Version version, const absl::Status& status);
  void OnEvalReport(const EvalReport& report);
  void BeginEnd(std::string status, std::string reason);
  // As Fail, after a last checkpoint.
  void FailWithCheckpoint(absl::Status status);
  void Stop(const std::string& reason);
  void TakeFinalCheckpoint();
  void AfterFinalCheckpoint();
  bool EndedBefore() const;  // no process of an earlier term goes on with it
  void GiveUpTo(const Join* member, const std::string& difference);
  void Finish();
  void FinishWithoutScore(const std::string& why);
  void Fail(absl::Status status);
  void EndStopped(const std::string& why);
  void EndJob(absl::Status status);
  void Bid(SessionId session, const std::string& member);
  void AwaitGoodbye(const std::string& member, TimePoint until);
  void OnGoodbye(SessionId session);
  Summary MakeSummary() const;
  double TrainingSeconds(TimePoint at) const;
  std::string EncodeState() const;
  void KeepNewestNorms(Manifest& manifest) const;
  absl::Status LoadState(const Manifest& manifest);

  // --- chief_status.cc
  std::string StatusJson(TimePoint at) const;
  std::string WaitingFor() const;
  // The same, but one text for all of a move of stripes: what is said when it changes.
  std::string WaitingToSay() const;
  WaitingEnd WaitingUntil() const;
  // Members without a connection, or silent, where nothing goes on before they answer or their leases end: of the
  // status, for it looks at every update.
  std::pair<std::string, WaitingEnd> WaitingForAway(TimePoint at) const;
  bool SeemsAway(SessionId session, Incarnation member, TimePoint at) const;
  nlohmann::json NoiseJson() const;
  double SecondsLeft() const;
  void AddMembers(nlohmann::json& status, TimePoint at) const;

  Version version() const { return Version{generation, commit}; }
  bool training_complete() const {
    const TrainConfig& train = options.experiment.train;
    return ledger->Finished() ||
           (train.max_commits > 0 && static_cast<std::int64_t>(commit.value()) >= train.max_commits);
  }

  // --- constant after construction
  ChiefOptions options;
  absl::flat_hash_map<std::string, std::size_t> listed_places;  // of options.listed_workers

  // --- of the call in progress
  TimePoint now{};
  ChiefActions actions;

  // --- the job
  std::string job_id;
  Generation generation;
  LogHistory log;               // with everything that this chief has appended
  bool recovering = false;      // the log's line may be gone on with; not known yet whether the servers still hold it
  bool continuing = false;      // they do, and are told so
  std::uint64_t base_hash = 0;  // of the checkpoint's version, while recovering
  std::optional<Version> reading;  // up to this decision, in kReading
  std::int64_t samples_rolled_back = 0;
  double seconds_before = 0;         // of training, under earlier chiefs
  std::int64_t samples_untimed = 0;  // committed before the log said how long that took
  Phase phase = Phase::kGathering;
  TimePoint phase_deadline = kNever;
  TimePoint last_tick{};
  TimePoint started{};  // Start()
  std::int64_t started_unix_ms = 0;
  std::optional<TimePoint> first_ticket;
  std::vector<TensorSpec> tensors;  // empty until the first worker described the model
  std::string data_fingerprint, data_statistics_json;
  std::int64_t samples = 0;            // in the training set
  std::optional<SampleLedger> ledger;  // with the model
  CommitNumber commit;
  std::uint64_t chain_hash = 0;
  std::int64_t samples_trained = 0;
  std::int64_t dropped_updates = 0;
  double last_loss = 0;
  bool any_loss = false;
  double rate = 0;  // examples/s; of sums in which a commit weighs less as time passes
  double rate_samples = 0, rate_seconds = 0;
  std::optional<TimePoint> last_commit_at;  // since the last rollback
  std::optional<TimePoint> trained_until;   // the last commit of this chief's

  // --- members
  std::vector<ServerState> servers;             // of the layout, in its order
  std::vector<ServerState> spares;              // joined, and in no layout
  LayoutNumber layout, newest_layout;           // that rules; that was ever prepared
  bool had_layout = false;                      // servers hold parameters, or held them before this chief
  TimePoint awaited_since{};                    // when phase_deadline was set
  TimePoint replace_until = kNever;             // so long a lost server is waited for
  bool first_server_here = false;               // since gathering began; what the others are given counts from there
  std::optional<std::uint32_t> target_servers;  // as ordered, until it is so
  std::optional<LayoutMove> move;
  bool layout_next = false;              // no checkpoint begins before it is there
  bool layout_due = false;               // and nothing binds
  bool switching = false;                // the servers have been told of the new layout, and not all have answered
  TimePoint next_move{};                 // not before, after one that was given up
  std::vector<std::string> failed_move;  // who was to have the stripes, where it failed
  TimePoint next_failed_move{};          // not before: of the same once more
  Duration failed_move_pause{};
  TimePoint next_farewell{};               // not before: of servers that all leave
  bool given_up = false;                   // the job is another chief's
  std::optional<std::string> early_stop;   // the evaluator's wish, once training goes on
  std::optional<std::string> stop_wanted;  // once the servers, which hold more than a checkpoint does, have answered
  WorkerTable workers;
  std::map<SessionId, std::string> evaluators;  // their names
  bool evaluator_seen = false;
  std::map<SessionId, Join> waiting;                         // workers that joined before the servers were ready
  std::map<std::pair<Role, std::string>, NameClaim> claims;  // none where the holder is not connected
  std::deque<std::uint64_t> ended_nonces;
  Incarnation last_incarnation;
  MembershipEpoch membership_epoch;
  LeaseTable leases;
  std::map<std::string, WorkerTotals> totals;
  std::deque<MemberEvent> member_events;  // the newest
  std::uint64_t last_member_event = 0;
  std::map<std::string, TimePoint> coming;  // workers that have the experiment and open their data, since when
  bool first_grant_done = false;
  TimePoint first_grant_by = kNever;  // or without those that have not come; kNever: not awaited yet
  // A member that this chief took up from its log has come back: the job's processes live on, and who is in the cluster
  // file and no member any more has left or was lost before.
  bool members_came_back = false;
  std::string said_waiting;  // the last "waiting for" line, whom and what then, so that it is said once

  // --- steps
  UpdateTable undecided;
  SetNumber last_set;
  std::deque<UpdateId> dropped;  // the newest of this generation: a server whose stream broke has not heard of all
  // When the provisional plan was made, if there is one: the ledger's returns(), the workers' training_changes().
  std::uint64_t provisional_returns = 0;
  std::optional<std::uint64_t> provisional_training;
  bool planned_ahead_again = false;  // since the step under way was bound
  std::deque<Decision> unapplied;    // by at least one server

  // --- batches
  std::optional<BatchController> batches;  // modes proportional and model
  GlobalBatch global_batch;
  std::int64_t provisional_global_batch = 0;  // that the provisional plan was made for
  std::optional<GradientNoise> noise;         // where servers measure gradients
  std::deque<MeasuredStep> measured;          // and not all of it is learnt from
  std::optional<StepNorms> restored_norms;    // of the checkpoint's own commit, not learnt from yet
  std::optional<double> gradient_norm;        // of the newest measured commit
  double commit_seconds = 0;                  // between two, smoothed
  std::int64_t said_plans = 0;
  std::string said_bounds;                           // that cannot hold; empty: they do
  bool said_memory = false;                          // that the workers' may not hold a step
  std::map<Incarnation, std::int64_t> async_shares;  // of the round in progress
  CommitNumber async_round;                          // commit at which it was cut
  MembershipEpoch async_epoch;

  // --- checkpoints and the end
  std::optional<CheckpointInProgress> checkpoint;
  std::optional<Manifest> durable;  // the newest complete one of this generation's history
  bool checkpoint_due = false;
  TimePoint last_checkpoint_at{};
  std::string end_status, end_reason;
  absl::Status failure;  // what the job fails with once its last checkpoint is complete
  bool final_scored = false;
  std::optional<EvalReport> last_eval;
  std::optional<TimePoint> ended_at;
  std::map<std::string, TimePoint> unheard;  // members that have not said that they know of the end, awaited until then
  std::map<SessionId, std::string> told;     // of the end, on their stream
  std::pair<SessionId, std::string> joining;  // whose Join is being looked at
  std::set<SessionId> askers;                 // for the status; the end is told them unasked, for the chief goes then
};

}  // namespace evenkeel
