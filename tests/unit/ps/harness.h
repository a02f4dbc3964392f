// A scripted conversation with a ps::Server: sends it messages, carries out the memory actions at once (or holds them)
// and keeps what it said.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/ps/server.h"

namespace evenkeel::ps {

inline const std::string kJob(32, 'a');
inline const std::string kSpec(64, 'b');

inline UpdateId Update(std::uint64_t worker, std::uint64_t sequence, std::uint64_t term = 1) {
  return UpdateId{Term(term), Incarnation(worker), sequence};
}
inline Version At(std::uint64_t commit, std::uint64_t generation = 1) {
  return Version{Generation(generation), CommitNumber(commit)};
}

inline std::vector<TensorSpec> SmallModel(std::int64_t elements = 64, std::int64_t statistics = 0) {
  std::vector<TensorSpec> tensors(1);
  tensors[0].name = "dense/weight";
  tensors[0].shape = Shape{elements};
  if (statistics > 0) {
    tensors.push_back({.name = "norm/mean", .shape = Shape{statistics}, .statistic = true});
  }
  return tensors;
}

// Answers of one kind, in order.
template <class T>
std::vector<T> BodiesIn(const std::vector<Message>& messages) {
  std::vector<T> found;
  for (const Message& message : messages) {
    if (const T* body = std::get_if<T>(&message.body)) found.push_back(*body);
  }
  return found;
}

class Conversation {
 public:
  explicit Conversation(ServerOptions options = {.name = "ps:0", .spec_hash = kSpec}) : server(options) {}

  Envelope FromChief() const {
    return {.job_id = kJob,
            .spec_hash = kSpec,
            .term = Term(term),
            .generation = Generation(generation),
            .layout = LayoutNumber(layout)};
  }
  Envelope FromWorker(std::uint64_t worker) const {
    Envelope envelope = FromChief();
    envelope.sender = Incarnation(worker);
    return envelope;
  }

  // Carries out actions; memory work is done at once unless `hold_memory`.
  void Take(Actions actions) {
    for (Action& action : actions) {
      if (auto* a = std::get_if<SendToChief>(&action)) chief.push_back(a->message);
      if (auto* a = std::get_if<SendToWorker>(&action)) workers[a->session.value()].push_back(a->message);
      if (auto* a = std::get_if<CloseWorker>(&action)) closed.push_back(a->session.value());
      if (auto* a = std::get_if<RejoinChief>(&action)) rejoins.push_back(a->reason);
      if (auto* a = std::get_if<ServePull>(&action)) served.push_back({a->session.value(), a->request});
      if (auto* a = std::get_if<Finish>(&action)) finished = a->status;
      if (auto* a = std::get_if<LogLine>(&action)) log += a->text + "\n";
      if (std::holds_alternative<Initialise>(action) || std::holds_alternative<Restore>(action) ||
          std::holds_alternative<AllocateSlot>(action) || std::holds_alternative<ComputeNorms>(action) ||
          std::holds_alternative<ApplyDecision>(action) || std::holds_alternative<StartSnapshot>(action) ||
          std::holds_alternative<PreparePlace>(action) || std::holds_alternative<FillPlace>(action) ||
          std::holds_alternative<DropPrepared>(action) || std::holds_alternative<AdoptPrepared>(action) ||
          std::holds_alternative<ServeFetch>(action) || std::holds_alternative<FoldBucket>(action)) {
        memory.push_back(action);
      }
    }
    if (!hold_memory) DoMemory();
  }
  void DoMemory() {
    while (!memory.empty()) {
      Action action = memory.front();
      memory.erase(memory.begin());
      done.push_back(action);
      if (auto* a = std::get_if<Initialise>(&action)) Take(server.OnConfigured(a->version, absl::OkStatus(), now));
      if (auto* a = std::get_if<Restore>(&action)) Take(server.OnConfigured(a->version, absl::OkStatus(), now));
      if (auto* a = std::get_if<AllocateSlot>(&action)) Take(server.OnSlotReady(a->slot, absl::OkStatus(), now));
      if (auto* a = std::get_if<FoldBucket>(&action)) Take(server.OnFolded(a->configuration, a->step, now));
      if (auto* a = std::get_if<ComputeNorms>(&action)) Take(server.OnNorms(a->set, a->attempt, {{0, 2.5}}, now));
      if (auto* a = std::get_if<PreparePlace>(&action)) Take(server.OnPrepared(a->number, prepared, now));
      if (auto* a = std::get_if<FillPlace>(&action)) Take(server.OnFilled(a->number, filled, now));
      if (auto* a = std::get_if<AdoptPrepared>(&action)) Take(server.OnConfigured(a->version, absl::OkStatus(), now));
      if (auto* a = std::get_if<ApplyDecision>(&action))
        Take(server.OnApplied(a->decision.version, 0.01, squared_sums, now));
    }
  }

  void Chief(Body body) { Take(server.OnChiefMessage({FromChief(), std::move(body)}, now)); }
  void Worker(std::uint64_t session, Body body) { WorkerSays(session, FromWorker(session), std::move(body)); }
  void WorkerSays(std::uint64_t session, Envelope envelope, Body body) {
    Take(server.OnWorkerMessage(SessionId(session), {std::move(envelope), std::move(body)}, now));
  }
  // A whole Stage with its write. False when nothing was to be written.
  bool Put(std::uint64_t session, Stage stage, std::size_t bytes = 256) {
    auto write = Begin(session, std::move(stage), bytes);
    if (write) Take(server.EndStage(*write, true, now));
    return write.has_value();
  }
  std::optional<StageWrite> Begin(std::uint64_t session, Stage stage, std::size_t bytes = 256) {
    StageAnswer answer = server.BeginStage(SessionId(session), FromWorker(session), stage, bytes, now);
    Take(std::move(answer.actions));
    return answer.write;
  }
  void Close(std::uint64_t session, UpdateId update, std::uint32_t attempt = 0) {
    Stage closing{.update = update, .attempt = attempt, .bucket = -1, .closing = true, .samples = 10, .loss_sum = 5};
    closing.computed_on = server.published();
    Put(session, closing, 0);
  }
  // Bucket 0 and the closing message.
  void StageAll(std::uint64_t session, UpdateId update) {
    Put(session, {.update = update, .bucket = 0});
    Close(session, update);
  }

  // Joined and configured with one bucket of 64 floats; workers 10 and 11 live, with sessions of the same numbers.
  void SetUp(OptimizerSpec optimizer = {}) {
    Chief(Welcome{.incarnation = Incarnation(1), .job_id = kJob, .renew_ms = 1000});
    Configure configure{.server = ServerIndex(0), .servers = 1, .tensors = SmallModel(), .bucket_bytes = 4 << 20};
    configure.optimizer = optimizer;
    configure.version = At(0);
    Chief(configure);
    Chief(Members{MembershipEpoch(2), true, {{Incarnation(10), "worker:0"}, {Incarnation(11), "worker:1"}}, {}});
    Worker(10, Hello{"worker:0"});
    Worker(11, Hello{"worker:1"});
  }

  Decision Decide(std::uint64_t commit, std::uint64_t set, const std::vector<UpdateId>& updates,
                  std::uint32_t attempt = 0) {
    Decision decision{.version = At(commit, generation), .set = SetNumber(set), .attempt = attempt};
    for (const UpdateId& update : updates) decision.updates.push_back(CommittedUpdate{.update = update});
    decision.samples = 10;
    decision.learning_rate = 0.1;
    decision.previous_hash = chain;
    decision.hash = chain = HashDecision(decision);
    return decision;
  }

  // Memory actions of one kind that were done.
  template <class T>
  std::vector<T> Done() const {
    std::vector<T> found;
    for (const Action& action : done) {
      if (const T* one = std::get_if<T>(&action)) found.push_back(*one);
    }
    return found;
  }
  template <class T>
  std::vector<T> ToChief() const {
    return BodiesIn<T>(chief);
  }
  template <class T>
  std::vector<T> ToWorker(std::uint64_t session) {
    return BodiesIn<T>(workers[session]);
  }
  // The last refusal to a worker, or kJobEnded when there was none.
  RefuseReason Refused(std::uint64_t session) {
    auto refusals = ToWorker<Refuse>(session);
    return refusals.empty() ? RefuseReason::kJobEnded : refusals.back().reason;
  }
  void Forget() {
    chief.clear();
    workers.clear();
    served.clear();
    closed.clear();
    done.clear();
  }

  Server server;
  TimePoint now{std::chrono::seconds(100)};
  std::uint64_t term = 1, generation = 1, layout = 1;
  std::uint64_t chain = 0;
  bool hold_memory = false;
  std::vector<double> squared_sums;  // of every decision applied
  absl::Status prepared, filled;     // how preparations and fillings end
  std::vector<Action> memory, done;
  std::vector<Message> chief;
  std::map<std::uint64_t, std::vector<Message>> workers;
  std::vector<std::uint64_t> closed;
  std::vector<std::string> rejoins;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> served;
  std::optional<absl::Status> finished;
  std::string log;
};

}  // namespace evenkeel::ps
