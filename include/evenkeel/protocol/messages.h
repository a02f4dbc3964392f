// The conversation of chief, servers, workers and evaluator, as plain data. proto/evenkeel.proto is its wire form.
//
// Every message carries an Envelope. Messages may be lost with their stream, duplicated, delayed and reordered; whoever
// receives one applies it at most once and answers a repeated one as it did before.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "evenkeel/core/ids.h"
#include "evenkeel/core/ranges.h"
#include "evenkeel/core/role.h"
#include "evenkeel/core/specs.h"

namespace evenkeel {

struct Envelope {
  std::string job_id;     // 32 hex digits; empty until the chief has told it (Join)
  std::string spec_hash;  // 64 hex digits
  Term term;              // the sender's newest; 0 until known
  Generation generation;
  LayoutNumber layout;
  Incarnation sender;                // the chief's is 0
  MembershipEpoch membership_epoch;  // informs only
  friend bool operator==(const Envelope&, const Envelope&) = default;
};

// --- member -> chief ------------------------------------------------------------------------------------------------

// What a server holds when it joins: a chief that was started again goes on with it.
struct Holding {
  LayoutNumber layout;  // 0: nothing
  ServerIndex server;
  std::uint32_t servers = 0;
  Version decided;         // the newest decision it has obeyed
  std::uint64_t hash = 0;  // of that decision; 0 where it is the version that the server started from
  CommitNumber applied;
  friend bool operator==(const Holding&, const Holding&) = default;
};

// First message on a stream to the chief, repeated after a reconnect with the same nonce.
struct Join {
  Role role = Role::kWorker;
  std::string name;             // "worker:1", "ps:0", "chief:0" (a training chief's worker); unique among the living
  int index = -1;               // in the cluster file; -1: unlisted
  std::uint64_t nonce = 0;      // one life of one process
  std::string experiment_json;  // canonical, so that a mismatch can name the field
  std::string address;          // ps: "host:port" where it serves
  Holding holding;              // ps
  // Workers: what they read and compute. The first worker's is adopted, the others' compared.
  std::int64_t samples = 0;  // in the training set
  std::string data_fingerprint;
  std::string data_statistics_json;
  std::vector<TensorSpec> tensors;
  std::string compute_fingerprint;
  Incarnation former;  // that this process had before it was fenced: it takes its name only if nobody else has it
  friend bool operator==(const Join&, const Join&) = default;
};

// A worker has its data open and its streams to all servers up, and waits for tickets.
struct Ready {
  // As this worker timed itself on small batches of the job's model: a batch of b takes fixed + per_sample·b. 0: it did
  // not.
  double fixed_seconds = 0;
  double seconds_per_sample = 0;
  std::int64_t memory_samples = 0;  // the largest batch that its memory holds; 0: not known
  friend bool operator==(const Ready&, const Ready&) = default;
};

// Extends the lease; answered by Renewed. `state` is what the process does or waits for ("waiting for ticket"),
// since_ms how long already.
struct Renew {
  std::string state;
  std::int64_t since_ms = 0;
  std::string data_paths;           // a worker's, to each server in the layout's order: "shm,tcp"; empty: not known
  std::int64_t memory_samples = 0;  // a worker's, as in Ready, now
  std::int64_t filled_pieces = 0;   // a server's: pieces of state that have come from others, of the Fill under way
  friend bool operator==(const Renew&, const Renew&) = default;
};
struct Renewed {
  friend bool operator==(const Renewed&, const Renewed&) = default;
};

struct Leave {
  std::string reason;
  // Not yet: the ticket that the worker holds is finished, no other binds; a server's stripes are moved to the others.
  // LeaveNow says when that is so; a Leave without it follows.
  bool after_ticket = false;
  friend bool operator==(const Leave&, const Leave&) = default;
};

// How a step went, seconds.
struct StepReport {
  UpdateId update;
  std::int64_t samples = 0;
  double input_seconds = 0;  // waiting for the batch
  double pull_seconds = 0;
  double compute_seconds = 0;  // forward and backward
  // The first step of this process at this batch size: it took longer than the next ones will.
  bool first_of_size = false;
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

struct EvalReport {
  Version version;
  std::vector<std::pair<std::string, double>> metrics;
  bool final_score = false;  // of the job's last checkpoint
  bool stop = false;         // early stopping asks to end the job
  std::string reason;
  // The best so far.
  Version best_version;
  std::string best_metric;
  double best_value = 0;
  friend bool operator==(const EvalReport&, const EvalReport&) = default;
};

// Anyone, without joining.
struct StatusRequest {
  friend bool operator==(const StatusRequest&, const StatusRequest&) = default;
};
struct ExperimentRequest {
  std::string name;  // of a worker that is to join; else empty
  friend bool operator==(const ExperimentRequest&, const ExperimentRequest&) = default;
};
// Lets a member go in good order.
struct Drain {
  std::string name;
  friend bool operator==(const Drain&, const Drain&) = default;
};

// Changes the number of servers, once enough of them have joined.
struct Scale {
  std::uint32_t servers = 0;
  friend bool operator==(const Scale&, const Scale&) = default;
};

// --- chief -> member ------------------------------------------------------------------------------------------------

struct ServerAddress {
  std::string address;
  Incarnation incarnation;
  std::string name{};  // "ps:0"; empty in what was written before names counted
  friend bool operator==(const ServerAddress&, const ServerAddress&) = default;
};

// Answers Join. A worker is not admitted yet: it connects to the servers and sends Ready.
struct Welcome {
  Incarnation incarnation;
  std::string job_id;
  std::string experiment_json;
  std::int64_t lease_ms = 0;
  std::int64_t renew_ms = 0;
  // Workers:
  std::vector<ServerAddress> servers;  // in layout order
  std::vector<TensorSpec> tensors;
  std::int64_t bucket_bytes = 0;
  std::uint64_t seed = 0;
  std::int64_t likely_samples = 0;  // of its first batch, about; 0: not known
  // Of later ones, were a worker more or fewer here: a few.
  std::vector<std::int64_t> likely_later;
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// To workers: the servers of a layout to come, in its order; none: it will not come. A worker connects to those that it
// has no stream to while training goes on. Answered by ConnectedAhead.
struct ConnectAhead {
  LayoutNumber layout;
  std::vector<ServerAddress> servers;
  friend bool operator==(const ConnectAhead&, const ConnectAhead&) = default;
};

struct Admitted {
  Rank rank;
  friend bool operator==(const Admitted&, const Admitted&) = default;
};

// To workers: the job stands still until these have come ("ps:1, worker:2"); empty: it goes on. It also tells one that
// has joined and is not welcomed yet that the chief is there.
struct Waiting {
  std::string for_whom;
  std::int64_t deadline_ms = 0;  // after so long the chief gives up; 0: it waits until the job ends
  friend bool operator==(const Waiting&, const Waiting&) = default;
};

// Work on these samples. Provisional: input may be read ahead, nothing computed; a later Ticket replaces it.
struct Ticket {
  UpdateId update;
  Epoch epoch;
  RangeList positions;
  bool bound = false;
  Version version;  // bound: compute on it or on a newer one; provisional: what it will be if all goes well, or {}
  std::int64_t deadline_ms = 0;  // bound: the holder is fenced after so long; provisional: so long it will have, or 0
  bool offer = false;            // bound: stage with Stage.offered; servers ask for the payloads as they have room
  friend bool operator==(const Ticket&, const Ticket&) = default;
};

// Binds the provisional ticket of the same update.
struct Bind {
  UpdateId update;
  Version version;
  std::int64_t deadline_ms = 0;
  bool offer = false;  // as in Ticket
  friend bool operator==(const Bind&, const Bind&) = default;
};

// What became of a bound ticket.
struct Outcome {
  UpdateId update;
  bool committed = false;  // false: dropped; its samples went back
  Version version;         // committed: the version that holds it
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

enum class RefuseReason : std::uint8_t {
  kRetry,  // not now; the same again later
  kForeignJob,
  kOtherExperiment,
  kOtherModel,
  kOtherData,
  kStaleIncarnation,
  kStaleTerm,
  kStaleGeneration,
  kStaleLayout,
  kNameTaken,
  kJobEnded,
  kMalformed,
};
const char* ToString(RefuseReason reason);

struct Refuse {
  RefuseReason reason = RefuseReason::kRetry;
  std::string message;
  // What was refused, when it was about an update.
  UpdateId update;
  friend bool operator==(const Refuse&, const Refuse&) = default;
};

// The job is over; everyone leaves.
struct JobEnd {
  bool ok = false;     // finished or stopped as told
  std::string status;  // finished | stopped | failed
  std::string message;
  friend bool operator==(const JobEnd&, const JobEnd&) = default;
};

// To evaluators: a checkpoint is complete on disk. To servers: decisions up to it need not be kept.
struct CheckpointDurable {
  Version version;
  bool final_checkpoint = false;
  friend bool operator==(const CheckpointDurable&, const CheckpointDurable&) = default;
};

struct StatusReply {
  std::string json;
  friend bool operator==(const StatusReply&, const StatusReply&) = default;
};

struct ExperimentReply {
  std::string job_id;
  std::string experiment_json;  // canonical, before ${VAR}
  std::string spec_hash;
  friend bool operator==(const ExperimentReply&, const ExperimentReply&) = default;
};

// To a worker: no ticket binds any more; it leaves once the one that it holds is decided. To a server: it is in no
// layout any more, and leaves. Answers Leave.after_ticket, and comes unasked by an order.
struct LeaveNow {
  std::string reason;
  friend bool operator==(const LeaveNow&, const LeaveNow&) = default;
};

// What becomes of an order.
struct OrderReply {
  bool accepted = false;
  std::string message;
  bool unknown = false;  // not accepted: what the order names is not there
  friend bool operator==(const OrderReply&, const OrderReply&) = default;
};

// --- chief -> server ------------------------------------------------------------------------------------------------

// Take this place in this layout and start from this version: initialised from the seed, or restored.
struct Configure {
  ServerIndex server;
  std::uint32_t servers = 1;
  std::vector<TensorSpec> tensors;
  std::int64_t bucket_bytes = 0;
  OptimizerSpec optimizer;
  std::uint64_t seed = 0;
  std::string model_dir;
  bool restore = false;
  Version checkpoint;              // restore: read this one; else commit 0 of the envelope's generation
  Version version;                 // what to publish
  bool measure_gradients = false;  // Applied tells their squared sums
  // How many staged updates the server has room for; a set of more is summed as it comes. 0: for one of each worker.
  std::uint32_t stage_slots = 0;
  friend bool operator==(const Configure&, const Configure&) = default;
};

// Make ready, beside what there is, for a place in a layout to come: memory, and streams to the servers of the one that
// rules. Training goes on. Answered by Prepared.
struct Prepare {
  LayoutNumber layout;  // to come; the envelope has the one that rules
  ServerIndex server;
  std::uint32_t servers = 1;
  std::vector<TensorSpec> tensors;
  std::int64_t bucket_bytes = 0;
  OptimizerSpec optimizer;
  std::vector<ServerAddress> sources;  // in the order of the layout that rules
  bool measure_gradients = false;
  std::uint32_t stage_slots = 0;
  friend bool operator==(const Prepare&, const Prepare&) = default;
};

// Fetch what the prepared place needs of the sources' parameters, statistics and slots. Nothing is decided meanwhile.
// Answered by Filled.
struct Fill {
  LayoutNumber layout;
  Version version;  // that they hold
  friend bool operator==(const Fill&, const Fill&) = default;
};

// The layout that was prepared will not come; its memory is freed.
struct Abandon {
  LayoutNumber layout;
  friend bool operator==(const Abandon&, const Abandon&) = default;
};

// The layout that was filled rules: the envelope has its number. Answered by Configured.
struct Switch {
  Version version;  // unchanged by the move
  friend bool operator==(const Switch&, const Switch&) = default;
};

struct Member {
  Incarnation incarnation;
  std::string name;
  friend bool operator==(const Member&, const Member&) = default;
};

// From a chief that was started again: what the server holds stays. After the decisions that went before it on the
// stream, everything undecided is void. Answered by Configured.
struct Continue {
  Version version;  // of the newest decision
  friend bool operator==(const Continue&, const Continue&) = default;
};

// Asks for the decisions after this one that no durable checkpoint covers. Answered by KeptDecisions.
struct ReadDecisions {
  Version after;
  friend bool operator==(const ReadDecisions&, const ReadDecisions&) = default;
};

// Live workers. `full` replaces the list; else it changes it. Fenced ones are dead for good: what they staged and is
// not complete is void, their pins end.
struct Members {
  MembershipEpoch epoch;
  bool full = false;
  std::vector<Member> admitted;
  std::vector<Incarnation> fenced;
  friend bool operator==(const Members&, const Members&) = default;
};

// Updates that are to commit together, in rank order; attempt + 1 replaces the set. Answered by Sealed as soon as the
// server can apply exactly these without anybody's help. A set that is folded is summed in rank order while it comes: a
// higher attempt of it begins anew, and all its updates are asked for once more.
struct Seal {
  SetNumber set;
  std::uint32_t attempt = 0;
  std::vector<UpdateId> updates;
  bool folded = false;
  friend bool operator==(const Seal&, const Seal&) = default;
};

// Never to commit: what is staged of them is void, whatever still comes is refused.
struct Drop {
  std::vector<UpdateId> updates;
  friend bool operator==(const Drop&, const Drop&) = default;
};

// An update as it commits. Servers need its id only; they keep the rest for a chief whose log has lost its end.
struct CommittedUpdate {
  UpdateId update;
  Rank rank;
  Epoch epoch;
  RangeList positions;
  std::int64_t clock = 0;            // of its worker, after this commit
  CommitNumber bound_at;             // newest decided commit when the ticket was bound
  std::vector<Version> computed_on;  // one a server
  // On a 16-bit wire: what rounding took from this worker's update of this sequence was added to it. 0: nothing.
  std::uint64_t feedback = 0;
  friend bool operator==(const CommittedUpdate&, const CommittedUpdate&) = default;
};

struct Decision {
  Version version;  // the one it makes; applied in order, without gaps
  SetNumber set;
  std::uint32_t attempt = 0;
  std::vector<CommittedUpdate> updates;  // rank order
  std::int64_t samples = 0;              // the divisor
  double loss_sum = 0;
  double learning_rate = 0;
  double clip_scale = 1;               // by global norm
  std::int64_t global_batch_size = 0;  // of the step that is planned next, where it may change; else 0
  std::uint64_t previous_hash = 0;
  std::uint64_t hash = 0;  // chains this decision to all before it
  friend bool operator==(const Decision&, const Decision&) = default;
};

// Copy the version (after applying it, before the next) into MODEL_DIR's checkpoint folder; training goes on.
struct Snapshot {
  Version version;
  std::string folder;
  std::string file;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// --- server -> chief ------------------------------------------------------------------------------------------------

struct Configured {
  ServerIndex server;
  Version version;
  std::int64_t owned_floats = 0;
  friend bool operator==(const Configured&, const Configured&) = default;
};

struct Prepared {
  LayoutNumber layout;
  std::string error;  // empty: it can be filled
  friend bool operator==(const Prepared&, const Prepared&) = default;
};

struct Filled {
  LayoutNumber layout;
  std::string error;  // empty: all is there
  friend bool operator==(const Filled&, const Filled&) = default;
};

// A worker's: it has a stream to each of that layout's servers that the one that rules has not.
struct ConnectedAhead {
  LayoutNumber layout;
  friend bool operator==(const ConnectedAhead&, const ConnectedAhead&) = default;
};

// In order; several messages where there are many.
struct KeptDecisions {
  std::vector<Decision> decisions;
  friend bool operator==(const KeptDecisions&, const KeptDecisions&) = default;
};

struct MembersAck {
  MembershipEpoch epoch;
  friend bool operator==(const MembersAck&, const MembersAck&) = default;
};

// An update is complete on this server, and stays so whatever becomes of its worker, unless a folded set begins anew.
struct Staged {
  UpdateId update;
  std::int64_t samples = 0;
  double loss_sum = 0;
  std::int64_t non_finite = 0;
  std::string non_finite_layer;
  Version computed_on;            // the version that this server gave for it
  std::uint64_t feedback = 0;     // see CommittedUpdate
  std::uint32_t set_attempt = 0;  // of the folded set that it stands in; else 0
  friend bool operator==(const Staged&, const Staged&) = default;
};

// Squared sum of a block of the summed gradient, for clipping by global norm.
struct BlockNorm {
  std::int64_t begin = 0;  // floats, in the flat vector
  double squared_sum = 0;
  friend bool operator==(const BlockNorm&, const BlockNorm&) = default;
};

struct Sealed {
  SetNumber set;
  std::uint32_t attempt = 0;
  std::vector<BlockNorm> norms;  // empty unless clip_norm > 0
  friend bool operator==(const Sealed&, const Sealed&) = default;
};

struct Applied {
  Version version;
  std::uint64_t hash = 0;
  double apply_seconds = 0;
  // Where the place is to measure: of the gradient sums that this server holds, without statistics, one an update in
  // the decision's order, then that of all of them together.
  std::vector<double> squared_sums{};
  friend bool operator==(const Applied&, const Applied&) = default;
};

struct SnapshotDone {
  Version version;
  std::string file;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  std::string error;  // empty: ok
  friend bool operator==(const SnapshotDone&, const SnapshotDone&) = default;
};

// --- worker <-> server ----------------------------------------------------------------------------------------------

// First message on a worker's stream to a server.
struct Hello {
  std::string name;
  friend bool operator==(const Hello&, const Hello&) = default;
};
struct HelloAck {
  ServerIndex server;
  Version version;
  friend bool operator==(const HelloAck&, const HelloAck&) = default;
};

// One bucket's gradient sum on this server's stripe; payload: float32, little endian, the stripe's length. Buckets may
// come in any order; the update is complete with all buckets whose stripe here is not empty, and the closing message.
struct Stage {
  UpdateId update;
  std::uint32_t attempt = 0;
  std::int32_t bucket = 0;  // -1: closing message without payload
  bool closing = false;     // carries the fields below
  std::int64_t samples = 0;
  double loss_sum = 0;
  std::int64_t non_finite = 0;
  std::string non_finite_layer;
  Version computed_on;
  std::uint64_t feedback = 0;  // see CommittedUpdate
  std::int64_t mean_of = 0;  // with a payload: > 0: it is bfloat16, the mean over so many samples; 0: float32, the sum
  bool offered = false;      // the payload comes when the server asks for it
  friend bool operator==(const Stage&, const Stage&) = default;
};

// Answers a closing Stage, and asks for what was offered.
struct StageAck {
  UpdateId update;
  std::uint32_t attempt = 0;
  bool complete = false;
  std::vector<std::int32_t> missing;  // buckets whose payloads are to be sent, once more or at last
  friend bool operator==(const StageAck&, const StageAck&) = default;
};

// Answered by one PullData a non-empty stripe, all from one version, at least the one asked for; then a last one with
// bucket -1 and no payload. The server waits for the version until `deadline_ms`, then refuses with kRetry.
struct Pull {
  std::uint64_t request = 0;
  Version at_least;
  std::int64_t deadline_ms = 0;
  bool bfloat16 = false;  // the stripes are wanted rounded; those of statistics never are
  friend bool operator==(const Pull&, const Pull&) = default;
};
struct PullData {
  std::uint64_t request = 0;
  Version version;
  std::int32_t bucket = 0;
  friend bool operator==(const PullData&, const PullData&) = default;
};

// --- server <-> server, on a stream that begins with Hello ----------------------------------------------------------

// Answered by FetchData with the ranges' floats in one payload. Refused with kRetry where the version is not the
// newest.
struct Fetch {
  std::uint64_t request = 0;
  Version version;
  std::uint32_t array = 0;            // 0: parameters and statistics; n: the optimizer's slot n
  std::vector<PositionRange> ranges;  // floats, in the flat vector; each within one of the server's stripes
  friend bool operator==(const Fetch&, const Fetch&) = default;
};
struct FetchData {
  std::uint64_t request = 0;
  Version version;
  friend bool operator==(const FetchData&, const FetchData&) = default;
};

using Body =
    std::variant<Join, Ready, Renew, Leave, StepReport, EvalReport, StatusRequest,                                   //
                 Welcome, Admitted, Waiting, Ticket, Bind, Outcome, Refuse, JobEnd, CheckpointDurable, StatusReply,  //
                 Configure, Continue, ReadDecisions, Members, Seal, Drop, Decision, Snapshot,                        //
                 Configured, KeptDecisions, MembersAck, Staged, Sealed, Applied, SnapshotDone,                       //
                 Hello, HelloAck, Stage, StageAck, Pull, PullData,                                                   //
                 ExperimentRequest, ExperimentReply, Drain, OrderReply, LeaveNow,                                    //
                 Scale, Renewed, Prepare, Fill, Abandon, Switch, Prepared, Filled, Fetch, FetchData,                 //
                 ConnectAhead, ConnectedAhead>;

struct Message {
  Envelope envelope;
  Body body;
  friend bool operator==(const Message&, const Message&) = default;
};

// "Stage", for logs.
const char* NameOf(const Body& body);

std::vector<UpdateId> UpdateIds(const Decision& decision);

// The chained hash of a decision: previous_hash mixed with every other field.
std::uint64_t HashDecision(const Decision& decision);

}  // namespace evenkeel
