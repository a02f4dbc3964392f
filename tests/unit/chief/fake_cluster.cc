#include "unit/chief/fake_cluster.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace evenkeel {
namespace {

const char* kExperiment = R"({
  "name": "fake",
  "model": {"layers": [{"dense": {"units": 1}}], "loss": "mse"},
  "input": {"train": {"csv": {"files": ["x.csv"], "label": "y"}}},
  "train": {"epochs": 1, "global_batch_size": 64}
})";

}  // namespace

FakeCluster::FakeCluster(const FakeClusterOptions& options) : options_(options), rng_(options.seed) {
  std::vector<std::string> overrides;
  std::istringstream words(options.overrides);
  for (std::string word; words >> word;) overrides.push_back(word);
  auto experiment = ParseExperiment(kExperiment, "fake", overrides);
  INFO(experiment.status().ToString());
  REQUIRE(experiment.ok());
  experiment_ = *experiment;
  ChiefOptions chief;
  chief.new_job_id = "00000000000000000000000000000001";
  chief.term = Term(options.resume ? 2 : 1);
  if (options.resume) {
    chief.history.job_id = chief.new_job_id;
    chief.history.last_term = Term(1);
    chief.history.last_generation = chief.history.generation = Generation(1);
    chief.history.samples_committed = options.resume->samples_trained;
    chief.history.last_layout = options.former_layout;
  }
  chief.experiment = experiment_;
  chief.model_dir = "model";
  chief.servers = static_cast<std::uint32_t>(options.servers);
  chief.expects_evaluator = options.expects_evaluator;
  for (int i = 0; i < options.workers; ++i) chief.listed_workers.push_back(absl::StrCat("worker:", i));
  chief.resume = options.resume;
  chief_ = std::make_unique<Chief>(std::move(chief));
  Take(chief_->Start(now_, 1700000000000));
  for (int i = 0; i < options.servers; ++i) {
    servers_.emplace_back();
    StartServer(i);
  }
  for (int i = 0; i < options.workers; ++i) StartWorker(absl::StrCat("worker:", i));
}

FakeCluster::~FakeCluster() = default;

void FakeCluster::StartServer(int index) {
  if (static_cast<std::size_t>(index) >= servers_.size()) servers_.resize(static_cast<std::size_t>(index) + 1);
  for (Worker& worker : workers_) worker.to_server.resize(servers_.size());
  Server server;
  server.session = last_session_ = last_session_.Next();
  server.generation = Generation(options_.resume ? 2 : 1);
  server.nonce = 100000 + server.session.value();
  servers_[static_cast<std::size_t>(index)] = server;
  to_chief_[server.session].push_back(FromServer(index, JoinOfServer(index, server.nonce)));
}

Join FakeCluster::JoinOfServer(int index, std::uint64_t nonce) const {
  Join join;
  join.role = Role::kPs;
  join.name = absl::StrCat("ps:", index);
  join.index = index;
  join.nonce = nonce;
  join.address = absl::StrCat("host:", index);
  return join;
}

SessionId FakeCluster::StartTwinServer(int index) {
  const SessionId session = last_session_ = last_session_.Next();
  Message message = FromServer(index, JoinOfServer(index, 100000 + session.value()));
  message.envelope.sender = Incarnation{};
  to_chief_[session].push_back(std::move(message));
  return session;
}

void FakeCluster::CutServer(int index) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  to_chief_.erase(server.session);
  from_chief_.erase(server.session);
  server.cut = true;
}

void FakeCluster::ReconnectServer(int index) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  server.cut = false;
  server.session = last_session_ = last_session_.Next();
  Join join = JoinOfServer(index, server.nonce);
  join.holding.decided = server.version;
  join.holding.applied = server.version.commit;
  to_chief_[server.session].push_back(FromServer(index, std::move(join)));
}

void FakeCluster::AskServerToLeave(int index) {
  const Server& server = servers_[static_cast<std::size_t>(index)];
  to_chief_[server.session].push_back(FromServer(index, Leave{"told to", true}));
}

SessionId FakeCluster::AskStatus() {
  const SessionId session = last_session_ = last_session_.Next();
  Take(chief_->OnMessage(session, Message{{}, StatusRequest{}}, now_));
  return session;
}

OrderReply FakeCluster::Order(Body order) {
  OrderReply reply;
  const SessionId session = last_session_ = last_session_.Next();
  ChiefActions actions = chief_->OnMessage(session, Message{{}, std::move(order)}, now_);
  for (const ChiefAction& action : actions) {
    const auto* send = std::get_if<SendAction>(&action);
    if (send == nullptr || send->session != session) continue;
    reply = std::get<OrderReply>(send->message.body);
  }
  Take(std::move(actions));
  return reply;
}

void FakeCluster::AddEvaluator() {
  evaluator_ = last_session_ = last_session_.Next();
  Message join;
  join.envelope.spec_hash = experiment_.spec_hash;
  join.body = Join{.role = Role::kEvaluator, .name = "evaluator:0"};
  Take(chief_->OnMessage(evaluator_, std::move(join), now_));
}

void FakeCluster::Evaluate(const EvalReport& report) {
  Message message;
  message.envelope.spec_hash = experiment_.spec_hash;
  message.body = report;
  Take(chief_->OnMessage(evaluator_, std::move(message), now_));
}

std::vector<LayoutRecord> FakeCluster::layouts() const {
  std::vector<LayoutRecord> list;
  for (const LogRecord& record : log_) {
    if (const auto* layout = std::get_if<LayoutRecord>(&record)) list.push_back(*layout);
  }
  return list;
}

void FakeCluster::KillServer(int index) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  server.alive = false;
  to_chief_.erase(server.session);
  from_chief_.erase(server.session);
}

void FakeCluster::DisconnectServer(int index) {
  const SessionId session = servers_[static_cast<std::size_t>(index)].session;
  KillServer(index);
  Take(chief_->OnSessionClosed(session, now_));
}

int FakeCluster::StartWorker(const std::string& name) {
  const int index = static_cast<int>(workers_.size());
  Worker worker;
  worker.name = name;
  worker.nonce = 1 + static_cast<std::uint64_t>(index);
  worker.session = last_session_ = last_session_.Next();
  worker.to_server.resize(servers_.size());
  workers_.push_back(std::move(worker));
  Join join;
  join.name = name;
  join.nonce = workers_.back().nonce;
  join.samples = options_.samples;
  join.data_fingerprint = "0123456789abcdef";
  join.experiment_json = experiment_.canonical_json;
  TensorSpec tensor;
  tensor.name = "dense_0/weight";
  tensor.shape = Shape{100, 1};
  join.tensors = {tensor};
  to_chief_[workers_.back().session].push_back(FromWorker(index, std::move(join)));
  return index;
}

Envelope FakeCluster::EnvelopeOf(int worker) const {
  Envelope envelope;
  envelope.spec_hash = experiment_.spec_hash;
  envelope.sender = workers_[static_cast<std::size_t>(worker)].incarnation;
  envelope.generation = Generation(options_.resume ? 2 : 1);
  return envelope;
}

Message FakeCluster::FromWorker(int worker, Body body) { return Message{EnvelopeOf(worker), std::move(body)}; }

Message FakeCluster::FromServer(int server, Body body) {
  Message message;
  message.envelope.spec_hash = experiment_.spec_hash;
  message.envelope.sender = servers_[static_cast<std::size_t>(server)].incarnation;
  message.envelope.generation = servers_[static_cast<std::size_t>(server)].generation;
  message.envelope.layout = servers_[static_cast<std::size_t>(server)].layout;
  message.body = std::move(body);
  return message;
}

void FakeCluster::Inject(int worker, Message message) {
  to_chief_[workers_[static_cast<std::size_t>(worker)].session].push_back(std::move(message));
}

void FakeCluster::KillWorker(int index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  worker.alive = false;
  for (auto& queue : worker.to_server) queue.clear();
  to_chief_.erase(worker.session);
  from_chief_.erase(worker.session);
}

void FakeCluster::DisconnectWorker(int index) {
  const SessionId session = workers_[static_cast<std::size_t>(index)].session;
  KillWorker(index);
  Take(chief_->OnSessionClosed(session, now_));
}

void FakeCluster::PauseWorker(int index, bool paused) { workers_[static_cast<std::size_t>(index)].paused = paused; }

void FakeCluster::LeaveWorker(int index) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  to_chief_[worker.session].push_back(FromWorker(index, Leave{"told to"}));
  worker.tickets.clear();
  worker.ended = true;
}

std::vector<CommitRecord> FakeCluster::commits() const {
  std::vector<CommitRecord> list;
  for (const LogRecord& record : log_) {
    if (const auto* commit = std::get_if<CommitRecord>(&record)) list.push_back(*commit);
  }
  return list;
}

std::vector<CommitRecord> FakeCluster::surviving_commits() const {
  std::vector<CommitRecord> list;
  for (const LogRecord& record : log_) {
    if (const auto* commit = std::get_if<CommitRecord>(&record)) list.push_back(*commit);
    if (const auto* rollback = std::get_if<RollbackRecord>(&record)) {
      std::erase_if(list, [&](const CommitRecord& commit) {
        return commit.decision.version.commit > rollback->checkpoint.commit;
      });
    }
  }
  return list;
}

std::size_t FakeCluster::rollbacks() const {
  return static_cast<std::size_t>(std::count_if(log_.begin(), log_.end(), [](const LogRecord& record) {
    return std::holds_alternative<RollbackRecord>(record);
  }));
}

void FakeCluster::Take(ChiefActions actions) {
  for (ChiefAction& action : actions) {
    if (auto* send = std::get_if<SendAction>(&action)) {
      from_chief_[send->session].push_back(send->message);
      if (rng_.NextDouble() < options_.duplicate) from_chief_[send->session].push_back(std::move(send->message));
    }
    if (auto* append = std::get_if<AppendLogAction>(&action)) log_.push_back(append->record);
    if (auto* line = std::get_if<LogLineAction>(&action)) lines_.push_back(line->text);
    if (auto* end = std::get_if<EndAction>(&action)) end_ = *end;
    if (auto* write = std::get_if<WriteManifestAction>(&action)) {
      manifests_.push_back(write->manifest);
      manifests_to_acknowledge_.push_back(write->manifest.version);
    }
  }
}

void FakeCluster::ToChief(SessionId session, Message message) {
  const int times = rng_.NextDouble() < options_.duplicate ? 2 : 1;
  for (int i = 0; i < times; ++i) Take(chief_->OnMessage(session, message, now_));
}

void FakeCluster::TrySeal(int index, SetNumber number) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  const Seal& seal = server.seals.at(number);
  for (UpdateId id : seal.updates) {
    auto it = server.staged.find(id);
    if (it == server.staged.end() || !it->second.complete) return;
  }
  if (!server.sealed.insert({number, seal.attempt}).second) return;
  Sealed sealed{number, seal.attempt, {}};
  if (experiment_.train.optimizer.clip_norm > 0) sealed.norms.push_back({index * 16, squared_sum_});
  to_chief_[server.session].push_back(FromServer(index, std::move(sealed)));
}

void FakeCluster::ServerStages(int index, const StageMessage& stage) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  if (!server.alive || !server.live.contains(stage.update.incarnation) || server.dropped.contains(stage.update)) return;
  if (!server.staged.emplace(stage.update, stage.content).second) return;
  to_chief_[server.session].push_back(
      FromServer(index, Staged{stage.update, stage.content.samples, 0.5 * static_cast<double>(stage.content.samples),
                               stage.content.non_finite, "dense_0", stage.content.computed_on}));
  for (const auto& [number, seal] : server.seals) TrySeal(index, number);
}

void FakeCluster::ReleasePrepared() {
  hold_prepared_ = false;
  for (auto& [session, message] : std::exchange(held_prepared_, {})) to_chief_[session].push_back(std::move(message));
}

void FakeCluster::ReleaseFilled() {
  hold_filled_ = false;
  for (auto& [session, message] : std::exchange(held_filled_, {})) to_chief_[session].push_back(std::move(message));
}

void FakeCluster::HoldConnectedAhead(int index) { workers_.at(static_cast<std::size_t>(index)).holds_connected = true; }

void FakeCluster::ReleaseConnectedAhead(int index) {
  Worker& worker = workers_.at(static_cast<std::size_t>(index));
  worker.holds_connected = false;
  if (!worker.connected) return;
  to_chief_[worker.session].push_back(FromWorker(index, ConnectedAhead{*std::exchange(worker.connected, {})}));
}

void FakeCluster::ServerReceives(int index, const Message& message) {
  Server& server = servers_[static_cast<std::size_t>(index)];
  auto reply = [&](Body body) { to_chief_[server.session].push_back(FromServer(index, std::move(body))); };
  if (const auto* welcome = std::get_if<Welcome>(&message.body)) server.incarnation = welcome->incarnation;
  const auto* configure = std::get_if<Configure>(&message.body);
  if (configure != nullptr && server.generation == message.envelope.generation &&
      server.layout == message.envelope.layout) {
    reply(Configured{server.place, configure->version, 64});  // it came twice
  } else if (configure != nullptr) {
    server.generation = message.envelope.generation;
    server.layout = message.envelope.layout;
    server.place = configure->server;
    server.measures = configure->measure_gradients;
    server.staged.clear();
    server.seals.clear();
    server.sealed.clear();
    if (configure->version.generation != server.version.generation) server.applied.clear();
    server.version = configure->version;
    reply(Configured{server.place, configure->version, 64});
  }
  if (const auto* prepare = std::get_if<Prepare>(&message.body)) {
    if (prepare_error_.empty()) server.prepared = *prepare;
    if (hold_prepared_) {
      held_prepared_.emplace_back(server.session, FromServer(index, Prepared{prepare->layout, prepare_error_}));
    } else {
      reply(Prepared{prepare->layout, prepare_error_});
    }
  }
  if (const auto* fill = std::get_if<Fill>(&message.body)) {
    REQUIRE(server.prepared);
    REQUIRE(server.prepared->layout == fill->layout);
    for (const ServerAddress& source : server.prepared->sources) {
      const auto from = static_cast<std::size_t>(source.address.back() - '0');
      REQUIRE(servers_[from].version == fill->version);
    }
    if (fill_error_.empty()) server.filled = fill->version;
    if (hold_filled_) {
      held_filled_.emplace_back(server.session, FromServer(index, Filled{fill->layout, fill_error_}));
    } else {
      reply(Filled{fill->layout, fill_error_});
    }
  }
  if (const auto* order = std::get_if<Switch>(&message.body)) {
    if (server.layout != message.envelope.layout) {
      REQUIRE(server.prepared);
      REQUIRE(server.prepared->layout == message.envelope.layout);
      REQUIRE(server.filled == order->version);
      REQUIRE(server.staged.empty());
      if (server.version != order->version) server.applied.clear();
      server.generation = message.envelope.generation;
      server.layout = message.envelope.layout;
      server.place = server.prepared->server;
      server.version = order->version;
      server.prepared.reset();
      server.filled.reset();
    }
    reply(Configured{server.place, order->version, 64});
  }
  if (std::holds_alternative<Abandon>(message.body)) server.prepared.reset();
  if (std::holds_alternative<JobEnd>(message.body)) {
    reply(Leave{"the job has ended"});
  }
  if (std::holds_alternative<LeaveNow>(message.body)) {
    server.released = true;
    reply(Leave{"released"});
    server.alive = false;
  }
  if (const auto* members = std::get_if<Members>(&message.body)) {
    if (members->full) server.live.clear();
    for (const Member& member : members->admitted) {
      server.live.insert(member.incarnation);
      server.known.insert(member.incarnation);
    }
    for (Incarnation fenced : members->fenced) server.live.erase(fenced);
    reply(MembersAck{members->epoch});
  }
  if (const auto* seal = std::get_if<Seal>(&message.body)) {
    auto it = server.seals.find(seal->set);
    if (it == server.seals.end() || it->second.attempt <= seal->attempt) server.seals[seal->set] = *seal;
    TrySeal(index, seal->set);
  }
  if (const auto* drop = std::get_if<Drop>(&message.body)) {
    for (UpdateId id : drop->updates) {
      server.staged.erase(id);
      server.dropped.insert(id);
    }
  }
  if (const auto* decision = std::get_if<Decision>(&message.body)) {
    if (decision->version.commit <= server.version.commit) return;
    REQUIRE(decision->version.commit == server.version.commit.Next());
    REQUIRE(server.sealed.contains({decision->set, decision->attempt}));
    REQUIRE(server.seals.at(decision->set).updates == UpdateIds(*decision));
    if (!server.applied.empty()) REQUIRE(decision->previous_hash == server.applied.back().hash);
    std::int64_t samples = 0;
    for (UpdateId id : UpdateIds(*decision)) {
      samples += server.staged.at(id).samples;
      server.staged.erase(id);
      server.dropped.insert(id);
    }
    REQUIRE(samples == decision->samples);
    server.seals.erase(decision->set);
    server.applied.push_back(*decision);
    server.version = decision->version;
    Applied applied{decision->version, decision->hash, 0.001};
    if (server.measures) applied.squared_sums = SquaredSums(*decision);
    reply(std::move(applied));
  }
  if (const auto* snapshot = std::get_if<Snapshot>(&message.body)) {
    REQUIRE(snapshot->version.commit == server.version.commit);
    const bool fails = index == 0 && (failing_snapshots_ || snapshot->version.commit == failing_snapshot_);
    reply(SnapshotDone{snapshot->version, snapshot->file, 100, 7, fails ? "no space is left" : ""});
  }
}

// Of one server; all have the same part.
std::vector<double> FakeCluster::SquaredSums(const Decision& decision) const {
  const auto of = [this](std::int64_t samples) {
    const auto count = static_cast<double>(samples);
    return count * (count + noise_scale_) / options_.servers;
  };
  std::vector<double> sums;
  for (const CommittedUpdate& update : decision.updates) sums.push_back(of(TotalSize(update.positions)));
  sums.push_back(of(decision.samples));
  return sums;
}

void FakeCluster::Compute(int index, const Ticket& ticket) {
  if (!options_.timed) return Computed(index, ticket);
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  const auto samples = static_cast<double>(TotalSize(ticket.positions));
  worker.computed = now_ + FromSeconds(worker.fixed + worker.per_sample * samples);
  worker.computes = ticket;
  worker.computes.version = servers_[worker.servers[0]].version;
}

TimePoint FakeCluster::NextComputed() const {
  TimePoint next = kNever;
  for (const Worker& worker : workers_) next = std::min(next, worker.computed);
  return next;
}

void FakeCluster::Computed(int index, const Ticket& ticket) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  const std::int64_t samples = TotalSize(ticket.positions);
  const double seconds = worker.fixed + worker.per_sample * static_cast<double>(samples);
  to_chief_[worker.session].push_back(FromWorker(index, StepReport{ticket.update, samples, 0, 0, seconds, 0}));
  for (std::size_t s : worker.servers) {
    const Version computed_on = options_.timed ? ticket.version : servers_[s].version;
    Update update{true, TotalSize(ticket.positions), computed_on, poisoned_ == index ? 3 : 0};
    worker.to_server[s].push_back({ticket.update, update});
  }
}

void FakeCluster::WorkerReceives(int index, const Message& message) {
  Worker& worker = workers_[static_cast<std::size_t>(index)];
  worker.received.push_back(message);
  if (worker.ended) return;
  if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
    worker.incarnation = welcome->incarnation;
    worker.connected.reset();
    worker.servers.clear();
    for (const ServerAddress& server : welcome->servers) {
      worker.servers.push_back(static_cast<std::size_t>(server.address.back() - '0'));
    }
    worker.next_renew = now_ + Milliseconds(welcome->renew_ms);
    to_chief_[worker.session].push_back(FromWorker(index, Ready{.memory_samples = worker.memory}));
  }
  if (const auto* connect = std::get_if<ConnectAhead>(&message.body)) {
    worker.connected.reset();
    if (!connect->servers.empty()) worker.connected = connect->layout;
    if (!worker.holds_connected) ReleaseConnectedAhead(index);
  }
  if (const auto* ticket = std::get_if<Ticket>(&message.body)) {
    if (worker.tickets.contains(ticket->update)) return;
    std::erase_if(worker.tickets, [](const auto& entry) { return !entry.second.bound; });
    worker.tickets[ticket->update] = *ticket;
    if (ticket->bound) Compute(index, *ticket);
  }
  if (const auto* bind = std::get_if<Bind>(&message.body)) {
    auto it = worker.tickets.find(bind->update);
    if (it == worker.tickets.end() || it->second.bound) return;
    it->second.bound = true;
    Compute(index, it->second);
  }
  if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    worker.refusal = refuse->message;
    if (refuse->reason != RefuseReason::kRetry) worker.ended = true;
  }
  if (std::holds_alternative<JobEnd>(message.body)) {
    worker.ended = true;
    to_chief_[worker.session].push_back(FromWorker(index, Leave{"the job has ended"}));
  }
}

void FakeCluster::StepOnce() {
  if (!manifests_to_acknowledge_.empty() && rng_.Below(4) == 0) {
    const Version version = manifests_to_acknowledge_.front();
    manifests_to_acknowledge_.pop_front();
    return Take(chief_->OnManifestWritten(version, absl::OkStatus(), now_));
  }
  std::vector<std::function<void()>> moves;
  for (auto& [session, queue] : to_chief_) {
    const bool paused = std::any_of(workers_.begin(), workers_.end(),
                                    [&, s = session](const Worker& w) { return w.session == s && w.paused; });
    if (queue.empty() || paused) continue;
    moves.push_back([this, s = session, &queue] {
      Message message = std::move(queue.front());
      queue.pop_front();
      ToChief(s, std::move(message));
    });
  }
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    auto& queue = from_chief_[servers_[i].session];
    if (queue.empty() || !servers_[i].alive || servers_[i].cut) continue;
    moves.push_back([this, i, &queue] {
      Message message = std::move(queue.front());
      queue.pop_front();
      ServerReceives(static_cast<int>(i), message);
    });
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].alive || workers_[i].paused) continue;
    auto& queue = from_chief_[workers_[i].session];
    if (!queue.empty()) {
      moves.push_back([this, i, &queue] {
        Message message = std::move(queue.front());
        queue.pop_front();
        WorkerReceives(static_cast<int>(i), message);
      });
    }
    for (std::size_t s = 0; s < servers_.size(); ++s) {
      // A server answers "retry" to a worker that it does not know yet.
      if (workers_[i].to_server[s].empty() || !servers_[s].known.contains(workers_[i].incarnation)) continue;
      if (servers_[s].cut) continue;
      moves.push_back([this, i, s] {
        StageMessage stage = workers_[i].to_server[s].front();
        workers_[i].to_server[s].pop_front();
        ServerStages(static_cast<int>(s), stage);
      });
    }
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].computed > now_) continue;
    moves.push_back([this, i] {
      workers_[i].computed = kNever;
      Computed(static_cast<int>(i), workers_[i].computes);
    });
  }
  if (!moves.empty()) {
    now_ += std::chrono::microseconds(50);
    moves[rng_.Below(moves.size())]();
  } else if (manifests_to_acknowledge_.empty()) {
    now_ = std::min({chief_->NextDeadline(), now_ + std::chrono::milliseconds(500), NextComputed()});
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.alive || worker.paused || worker.ended || worker.next_renew > now_) continue;
    worker.next_renew = now_ + std::chrono::seconds(1);
    to_chief_[worker.session].push_back(
        FromWorker(static_cast<int>(i), Renew{.state = "working", .memory_samples = worker.memory}));
  }
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    if (!servers_[i].alive || servers_[i].incarnation == Incarnation{} || servers_[i].next_renew > now_) continue;
    if (servers_[i].cut) continue;
    servers_[i].next_renew = now_ + std::chrono::seconds(1);
    if (hold_filled_ && pieces_come_ && servers_[i].prepared) ++servers_[i].pieces;
    to_chief_[servers_[i].session].push_back(
        FromServer(static_cast<int>(i), Renew{.state = "serving", .filled_pieces = servers_[i].pieces}));
  }
  if (chief_->NextDeadline() <= now_ || moves.empty()) Take(chief_->Tick(now_));
}

bool FakeCluster::Run(int steps) {
  RunUntil([this] { return end_.has_value(); }, steps);
  return end_.has_value();
}

void FakeCluster::RunUntil(const std::function<bool()>& done, int steps) {
  for (int i = 0; i < steps && !done(); ++i) StepOnce();
}

ChiefOptions Again(const FakeCluster& before, int workers) {
  auto experiment = ParseExperiment(before.manifests().back().experiment_json, "again", {});
  REQUIRE(experiment.ok());
  ChiefOptions options;
  options.term = Term(2);
  options.experiment = *experiment;
  options.model_dir = "model";
  options.servers = 2;
  for (int i = 0; i < workers; ++i) options.listed_workers.push_back(absl::StrCat("worker:", i));
  for (const LogRecord& record : before.log()) options.history.Add(record);
  options.resume = before.manifests().back();
  return options;
}

Message JoinOfWorker(const FakeCluster& cluster) {
  Message join{cluster.EnvelopeOf(0), {}};
  join.envelope.sender = Incarnation{};
  Join body;
  body.name = "worker:0";
  body.nonce = 1;
  body.samples = 100000;
  body.data_fingerprint = "0123456789abcdef";
  body.tensors = cluster.manifests().back().tensors;
  join.body = body;
  return join;
}

}  // namespace evenkeel
