// A chief among servers and workers that obey the protocol but compute nothing, in virtual time. Each stream keeps its
// order; which stream moves next is drawn from a seed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "evenkeel/chief/chief.h"
#include "evenkeel/core/random.h"

namespace evenkeel {

struct FakeClusterOptions {
  int servers = 2;
  int workers = 3;
  std::int64_t samples = 1000;
  std::string overrides;  // separated by spaces: "train.sync.mode=asp train.epochs=2"
  std::uint64_t seed = 1;
  double duplicate = 0;  // share of messages delivered twice
  std::optional<Manifest> resume;
  std::optional<LayoutRecord> former_layout;  // with resume: the log's last
  bool expects_evaluator = false;
  bool timed = false;  // workers take the time that they report
};

class FakeCluster {
 public:
  explicit FakeCluster(const FakeClusterOptions& options);
  ~FakeCluster();

  // Delivers messages and lets time pass until the job has ended or `steps` are through. False: still running.
  bool Run(int steps = 1000000);
  // One delivery, or time to the next deadline where nothing is under way.
  void StepOnce();
  void RunUntil(const std::function<bool()>& done, int steps = 1000000);

  void KillWorker(int index);                // silently: its lease must find out
  void DisconnectWorker(int index);          // killed, and its connection breaks
  void PauseWorker(int index, bool paused);  // takes and sends nothing
  void LeaveWorker(int index);
  void KillServer(int index);        // silently: its lease must find out
  void DisconnectServer(int index);  // killed, and its connection breaks
  // Its stream to the chief breaks, and nothing reaches or leaves it; then it comes back on a new one.
  void CutServer(int index);
  void ReconnectServer(int index);
  bool ServerHeardOfDrop(int index, UpdateId update) const {
    return servers_.at(static_cast<std::size_t>(index)).dropped.contains(update);
  }
  void StartServer(int index);  // a new process under the same name, or one more
  // Another process with the name of one that is there; it does nothing but join, and Told has what it hears.
  SessionId StartTwinServer(int index);
  const std::deque<Message>& Told(SessionId session) { return from_chief_[session]; }
  void AskServerToLeave(int index);  // SIGTERM
  // Of a server that prepares for a layout to come; "": it is ready.
  void SetPrepareError(std::string error) { prepare_error_ = std::move(error); }
  // Answers to Prepare wait for ReleasePrepared.
  void HoldPrepared() { hold_prepared_ = true; }
  void ReleasePrepared();
  // The worker takes its time to connect to the servers of a layout to come.
  void HoldConnectedAhead(int index);
  void ReleaseConnectedAhead(int index);
  void SetFillError(std::string error) { fill_error_ = std::move(error); }
  // Places fill for ever, and a piece comes every second where `comes` says so.
  void HoldFilled(bool comes) { hold_filled_ = true, pieces_come_ = comes; }
  void ReleaseFilled();
  // The first server cannot write its part of this commit's checkpoint.
  void FailSnapshot(CommitNumber commit) { failing_snapshot_ = commit; }
  void FailSnapshots(bool all) { failing_snapshots_ = all; }
  OrderReply Order(Body order);
  SessionId AskStatus();  // Told has the answers
  void AddEvaluator();
  void Evaluate(const EvalReport& report);
  int StartWorker(const std::string& name);  // returns its index
  // The worker's next stage reports this many NaNs.
  void Poison(int index) { poisoned_ = index; }
  // Of the gradients that servers are to measure, samples: each norm is what it is on average.
  void SetNoiseScale(double samples) { noise_scale_ = samples; }
  bool measures() const { return servers_.at(0).measures; }
  void SetGradientSquaredSum(double per_server) { squared_sum_ = per_server; }
  // What workers report of their steps: fixed + per_sample * samples, seconds.
  void SetSpeed(int index, double per_sample, double fixed = 0.001) {
    workers_[static_cast<std::size_t>(index)].per_sample = per_sample;
    workers_[static_cast<std::size_t>(index)].fixed = fixed;
  }
  // What the worker's renewals and Ready say that its memory holds, samples.
  void SetMemory(int index, std::int64_t samples) { workers_[static_cast<std::size_t>(index)].memory = samples; }
  // The chief's process is held up; nobody else notices.
  void HoldUpChief(Duration time) { now_ += time; }
  void StopJob() { Take(chief_->Stop("SIGTERM", now_)); }

  Chief& chief() { return *chief_; }
  const std::vector<LogRecord>& log() const { return log_; }
  std::vector<CommitRecord> commits() const;
  // Without those that a rollback took back.
  std::vector<CommitRecord> surviving_commits() const;
  std::size_t rollbacks() const;
  const std::optional<EndAction>& end() const { return end_; }
  const std::vector<Manifest>& manifests() const { return manifests_; }
  const std::vector<std::string>& lines() const { return lines_; }
  TimePoint now() const { return now_; }
  // It was let go, and left.
  bool ServerReleased(int index) const { return servers_.at(static_cast<std::size_t>(index)).released; }
  std::vector<LayoutRecord> layouts() const;
  bool WorkerGone(int index) const { return workers_.at(static_cast<std::size_t>(index)).ended; }
  std::string Refusal(int index) const { return workers_.at(static_cast<std::size_t>(index)).refusal; }
  // Decisions applied by each server, in order.
  const std::vector<Decision>& applied(int server) const {
    return servers_.at(static_cast<std::size_t>(server)).applied;
  }
  // What a worker would send, whoever it is: for stale and foreign messages.
  void Inject(int worker, Message message);
  // Before all that is on its way.
  void Deliver(int worker, Message message) {
    ToChief(workers_.at(static_cast<std::size_t>(worker)).session, std::move(message));
  }
  Envelope EnvelopeOf(int worker) const;
  std::vector<Message> sent_to(int worker) const { return workers_.at(static_cast<std::size_t>(worker)).received; }

 private:
  struct Update {
    bool complete = false;
    std::int64_t samples = 0;
    Version computed_on;
    std::int64_t non_finite = 0;
  };
  struct Server {
    SessionId session;
    bool alive = true;
    Generation generation{1};
    Incarnation incarnation;
    TimePoint next_renew{};
    std::set<Incarnation> live, known;
    std::map<UpdateId, Update> staged;
    std::set<UpdateId> dropped;
    std::map<SetNumber, Seal> seals;
    std::set<std::pair<SetNumber, std::uint32_t>> sealed;
    std::vector<Decision> applied;
    Version version;
    LayoutNumber layout;
    ServerIndex place;
    std::optional<Prepare> prepared;
    std::optional<Version> filled;
    std::int64_t pieces = 0;
    bool released = false;
    bool cut = false;
    std::uint64_t nonce = 0;
    bool measures = false;
  };
  struct StageMessage {
    UpdateId update;
    Update content;
  };
  struct Worker {
    std::string name;
    std::uint64_t nonce = 0;
    SessionId session;
    Incarnation incarnation;
    bool alive = true, paused = false, ended = false;
    bool holds_connected = false;
    std::optional<LayoutNumber> connected;  // not said yet
    std::map<UpdateId, Ticket> tickets;
    double fixed = 0.01, per_sample = 0;
    std::int64_t memory = 0;
    std::string refusal;
    TimePoint next_renew = kNever;
    std::vector<std::size_t> servers;  // of its layout
    std::vector<std::deque<StageMessage>> to_server;
    TimePoint computed = kNever;  // the ticket that it computes
    Ticket computes;
    std::vector<Message> received;
  };

  void Take(ChiefActions actions);
  void ToChief(SessionId session, Message message);
  Message FromServer(int server, Body body);
  Join JoinOfServer(int index, std::uint64_t nonce) const;
  Message FromWorker(int worker, Body body);
  void ServerReceives(int server, const Message& message);
  void WorkerReceives(int worker, const Message& message);
  void ServerStages(int server, const StageMessage& stage);
  void TrySeal(int server, SetNumber set);
  void Compute(int worker, const Ticket& ticket);
  void Computed(int worker, const Ticket& ticket);
  TimePoint NextComputed() const;
  std::vector<double> SquaredSums(const Decision& decision) const;

  FakeClusterOptions options_;
  Experiment experiment_;
  Rng rng_;
  TimePoint now_{std::chrono::seconds(100)};
  std::unique_ptr<Chief> chief_;
  std::vector<Server> servers_;
  std::vector<Worker> workers_;
  std::map<SessionId, std::deque<Message>> to_chief_;
  std::map<SessionId, std::deque<Message>> from_chief_;
  SessionId last_session_, evaluator_;
  std::vector<LogRecord> log_;
  std::optional<EndAction> end_;
  std::vector<Manifest> manifests_;
  std::deque<Version> manifests_to_acknowledge_;
  std::vector<std::string> lines_;
  int poisoned_ = -1;
  double squared_sum_ = 1;
  double noise_scale_ = 0;
  std::string prepare_error_, fill_error_;
  bool hold_prepared_ = false;
  bool hold_filled_ = false, pieces_come_ = false;
  std::vector<std::pair<SessionId, Message>> held_filled_;
  std::vector<std::pair<SessionId, Message>> held_prepared_;
  std::optional<CommitNumber> failing_snapshot_;
  bool failing_snapshots_ = false;
};

// What a chief that is started again finds.
ChiefOptions Again(const FakeCluster& before, int workers);

// Of worker:0.
Message JoinOfWorker(const FakeCluster& cluster);

}  // namespace evenkeel
