// Who takes part: joins, admissions, leases, fences.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

WorkerState* Chief::Impl::WorkerBySession(SessionId session) {
  for (auto& [incarnation, worker] : workers) {
    if (worker.session == session && session != SessionId{}) return &worker;
  }
  return nullptr;
}

ServerState* Chief::Impl::ServerBySession(SessionId session) {
  if (session == SessionId{}) return nullptr;
  for (auto* list : {&servers, &spares}) {
    for (ServerState& server : *list) {
      if (server.session == session) return &server;
    }
  }
  return nullptr;
}

int Chief::Impl::AdmittedCount() const {
  return static_cast<int>(std::count_if(workers.begin(), workers.end(), [](const auto& entry) {
    return entry.second.rank.has_value() && !entry.second.leaving;
  }));
}

std::vector<WorkerState*> Chief::Impl::AdmittedByRank() {
  std::vector<WorkerState*> admitted;
  for (auto& [incarnation, worker] : workers) {
    if (worker.rank && !worker.leaving) admitted.push_back(&worker);
  }
  std::sort(admitted.begin(), admitted.end(), [](auto* a, auto* b) { return *a->rank < *b->rank; });
  return admitted;
}

std::string Chief::Impl::MissingMembers() const {
  std::vector<std::string> missing;
  for (const ServerState& server : servers) {
    if (server.incarnation == Incarnation{}) {
      missing.push_back(server.name);
    } else if (phase == Phase::kConfiguring && !server.configured) {
      missing.push_back(absl::StrCat(server.name, "'s stripes"));
    }
  }
  for (const std::string& name : options.listed_workers) {
    const bool here =
        std::any_of(workers.begin(), workers.end(),
                    [&](const auto& entry) {
                      return entry.second.name == name && (entry.second.ready || phase != Phase::kRunning);
                    }) ||
        std::any_of(waiting.begin(), waiting.end(), [&](const auto& entry) { return entry.second.name == name; });
    if (!here) missing.push_back(name);
  }
  if (missing.empty() && tensors.empty()) missing.push_back("a first worker");
  if (missing.size() > 8) {
    const std::size_t more = missing.size() - 8;
    missing.resize(8);
    missing.push_back(absl::StrCat(more, " more"));
  }
  return absl::StrJoin(missing, ", ");
}

void Chief::Impl::OnJoin(SessionId session, Join& join) {
  if (phase == Phase::kEnded) {
    told_of_end.insert(join.name);
    return Send(session, JobEnd{end_status != "failed", end_status, end_reason});
  }
  if (join.role == Role::kEvaluator) {
    evaluators.insert(session);
    evaluator_seen = true;
    Send(session, Welcome{Incarnation{},
                          job_id,
                          options.experiment.canonical_json,
                          options.experiment.membership.lease / std::chrono::milliseconds(1),
                          options.experiment.membership.renew / std::chrono::milliseconds(1),
                          {},
                          {},
                          0,
                          0});
    if (durable) Send(session, CheckpointDurable{durable->version, durable->final});
    return;
  }
  if (std::find(ended_nonces.begin(), ended_nonces.end(), join.nonce) != ended_nonces.end()) {
    return RefuseSession(session, RefuseReason::kStaleIncarnation,
                         absl::StrCat(join.name, ": this process is no member any more"), true);
  }
  if (join.role == Role::kPs) return OnServerJoin(session, join);
  OnWorkerJoin(session, join);
}

// A server is known by its name; one that has no place in the layout stands by.
void Chief::Impl::OnServerJoin(SessionId session, Join& join) {
  ServerState* server = FindServer(join.name);
  if (server != nullptr && server->incarnation != Incarnation{} && server->nonce == join.nonce) {
    server->session = session;
    if (join.holding.decided.generation == generation) {
      server->applied = std::max(server->applied, join.holding.applied);
    }
    return ResumeServerSession(*server);
  }
  if (server != nullptr && server->incarnation != Incarnation{}) {
    const std::string reason = "a newer process took its name";
    InLayout(*server) ? LoseServer(*server, reason) : EndSpare(server->incarnation, reason, false);
    server = FindServer(join.name);
  }
  if (phase == Phase::kEnded) return Send(session, JobEnd{end_status != "failed", end_status, end_reason});
  if (server == nullptr) {
    if (spares.size() >= kMaxSpareServers) {
      return RefuseSession(session, RefuseReason::kRetry,
                           absl::StrCat(join.name, ": ", spares.size(), " servers without a place are here already"),
                           false);
    }
    server = &spares.emplace_back();
    server->name = join.name;
  }
  last_incarnation = last_incarnation.Next();
  server->address = join.address;
  server->nonce = join.nonce;
  server->incarnation = last_incarnation;
  server->session = session;
  server->holding = join.holding;
  server->lost = false;
  server->state = "joined";
  leases.Grant(server->incarnation, now);
  const std::string stands_by =
      InLayout(*server) ? "" : absl::StrCat(" and stands by: ", servers.size(), " servers have the places");
  Say(absl::StrCat(server->name, " joined at ", server->address, stands_by));
  ResumeServerSession(*server);
}

void Chief::Impl::WelcomeServer(const ServerState& server) {
  Send(server.session, Welcome{server.incarnation,
                               job_id,
                               options.experiment.canonical_json,
                               options.experiment.membership.lease / std::chrono::milliseconds(1),
                               options.experiment.membership.renew / std::chrono::milliseconds(1),
                               {},
                               {},
                               0,
                               0});
}

// (Re)tells a server everything that it must know; all of it is idempotent.
void Chief::Impl::ResumeServerSession(ServerState& server) {
  leases.Renew(server.incarnation, now);
  WelcomeServer(server);
  if (InLayout(server)) {
    if (phase != Phase::kGathering) BringUpServer(server);
  } else if (server.leaving) {
    Send(server.session, LeaveNow{"its stripes are with others"});
  }
  if (move) SendPrepare(server);
}

void Chief::Impl::BringUpServer(ServerState& server) {
  if (phase == Phase::kReading) {
    if (server.holding.decided == reading) Send(server.session, ReadDecisions{version()});
    return;
  }
  const ServerIndex place = PlaceOf(server);
  const auto count = static_cast<std::uint32_t>(servers.size());
  Members members;
  members.epoch = membership_epoch;
  members.full = true;
  for (const auto& [incarnation, worker] : workers) members.admitted.push_back({incarnation, worker.name});
  if (!server.configured && switching) {
    Send(server.session, Switch{version()});
  } else if (!server.configured && !continuing) {
    Configure configure;
    configure.server = place;
    configure.servers = count;
    configure.tensors = tensors;
    configure.bucket_bytes = options.experiment.train.bucket_bytes;
    configure.optimizer = options.experiment.train.optimizer;
    configure.seed = options.experiment.train.seed;
    configure.model_dir = options.model_dir;
    configure.restore = options.resume.has_value();
    if (options.resume) configure.checkpoint = options.resume->version;
    configure.version = Version{generation, options.resume ? options.resume->version.commit : CommitNumber(0)};
    Send(server.session, std::move(configure));
  }
  Send(server.session, std::move(members));
  for (const auto& [number, set] : sets) {
    if (set.seal_sent) Send(server.session, Seal{number, set.attempt, set.updates});
  }
  auto send_snapshot = [&] {
    const Version at = checkpoint->manifest.version;
    Send(server.session, Snapshot{at, CheckpointFolder(options.model_dir, at), PartFileName(place, count)});
  };
  const bool snapshot = checkpoint && !checkpoint->parts[place.value()];
  if (snapshot && checkpoint->manifest.version.commit <= server.applied) send_snapshot();
  for (const Decision& decision : unapplied) {
    if (decision.version.commit <= server.applied) continue;
    Send(server.session, decision);
    if (snapshot && checkpoint->manifest.version == decision.version) send_snapshot();
  }
  if (!server.configured && continuing) Send(server.session, Continue{version()});
}

bool Chief::Impl::AdoptOrCompareModel(SessionId session, const Join& join) {
  if (tensors.empty()) {
    auto described = ParameterLayout::Create(join.tensors, options.experiment.train.bucket_bytes,
                                             static_cast<std::uint32_t>(servers.size()));
    if (!described.ok()) {
      RefuseSession(session, RefuseReason::kMalformed, std::string(described.status().message()), true);
      return false;
    }
    if (join.samples < 1) {
      RefuseSession(session, RefuseReason::kMalformed, absl::StrCat(join.name, " has no training samples"), true);
      return false;
    }
    tensors = join.tensors;
    samples = join.samples;
    data_fingerprint = join.data_fingerprint;
    data_statistics_json = join.data_statistics_json;
    Say(absl::StrCat(join.name, " describes the model: ", tensors.size(), " tensors, ", described->parameter_floats(),
                     " floats in ", described->buckets().size(), " buckets; ", samples, " training samples"));
    return CheckResume();
  }
  if (join.tensors != tensors) {
    std::string where = absl::StrCat("it has ", join.tensors.size(), " tensors, the job's has ", tensors.size());
    for (std::size_t i = 0; i < std::min(tensors.size(), join.tensors.size()); ++i) {
      if (join.tensors[i] == tensors[i]) continue;
      where = absl::StrCat("tensor ", i, " is ", join.tensors[i].name, " ", join.tensors[i].shape.ToString(),
                           ", the job's is ", tensors[i].name, " ", tensors[i].shape.ToString());
      break;
    }
    RefuseSession(session, RefuseReason::kOtherModel, absl::StrCat(join.name, " has another model: ", where), true);
    return false;
  }
  if (join.data_fingerprint != data_fingerprint || join.samples != samples) {
    RefuseSession(session, RefuseReason::kOtherData,
                  absl::StrCat(join.name, " reads other data: ", join.samples, " samples with fingerprint ",
                               join.data_fingerprint, "; the job's are ", samples, " with ", data_fingerprint),
                  true);
    return false;
  }
  return true;
}

// The model and data are known: does the checkpoint fit them?
bool Chief::Impl::CheckResume() {
  const TrainConfig& train = options.experiment.train;
  if (!options.resume) {
    ledger.emplace(samples, train.epochs);
    return true;
  }
  const Manifest& manifest = *options.resume;
  const std::string name = CheckpointName(manifest.version);
  std::string problem;
  if (manifest.tensors != tensors) {
    problem = "it holds another model";
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (i < manifest.tensors.size() && manifest.tensors[i] == tensors[i]) continue;
      absl::StrAppend(&problem, ": tensor ", i, " is ",
                      i < manifest.tensors.size()
                          ? absl::StrCat(manifest.tensors[i].name, " ", manifest.tensors[i].shape.ToString())
                          : "missing",
                      ", the experiment's is ", tensors[i].name, " ", tensors[i].shape.ToString());
      break;
    }
  } else if (manifest.data_fingerprint != data_fingerprint) {
    problem =
        absl::StrCat("it was trained on data ", manifest.data_fingerprint, ", the experiment's is ", data_fingerprint);
  } else if (manifest.seed != train.seed) {
    problem = absl::StrCat("its seed is ", manifest.seed, ", the experiment's is ", train.seed);
  } else if (SlotNames(manifest.optimizer) != SlotNames(train.optimizer)) {
    problem = absl::StrCat("its optimizer is ", ToString(manifest.optimizer.kind), ", the experiment's is ",
                           ToString(train.optimizer.kind));
  } else if (absl::Status status = LoadState(manifest); !status.ok()) {
    problem = std::string(status.message());
  }
  if (problem.empty()) {
    durable = manifest;
    if (!recovering) return true;
    const absl::Status status = TakeUpLog();
    if (!status.ok()) Fail(status);
    return status.ok();
  }
  Fail(absl::InvalidArgumentError(absl::StrCat("checkpoint ", name, " in ", options.model_dir,
                                               " does not fit the experiment: ", problem,
                                               "; use another model_dir, or the experiment it was made with")));
  return false;
}

void Chief::Impl::OnWorkerJoin(SessionId session, Join& join) {
  if (!AdoptOrCompareModel(session, join)) {
    if (phase == Phase::kEnded) Send(session, JobEnd{false, end_status, end_reason});  // it is in no list yet
    return;
  }
  for (auto& [incarnation, worker] : workers) {
    if (worker.nonce != join.nonce) continue;
    worker.session = session;
    if (phase >= Phase::kRunning) return ResumeWorkerSession(worker);
    leases.Renew(incarnation, now);
    return Send(session, WaitingNow());
  }
  const auto limit = static_cast<std::size_t>(2 * options.experiment.membership.workers_max);
  if (workers.size() + waiting.size() >= limit) {
    return RefuseSession(session, RefuseReason::kRetry,
                         absl::StrCat("the job has ", workers.size(), " workers; membership.workers_max is ",
                                      options.experiment.membership.workers_max),
                         false);
  }
  Say(absl::StrCat(join.name, " is here"));
  waiting[session] = std::move(join);
  if (phase != Phase::kRunning) return Send(session, WaitingNow());
  Join kept = std::move(waiting.at(session));
  waiting.erase(session);
  for (auto& [incarnation, worker] : workers) {
    if (worker.name != kept.name) continue;
    if (kept.former != Incarnation{} && kept.former != incarnation) {
      return RefuseSession(session, RefuseReason::kNameTaken,
                           absl::StrCat("incarnation ", kept.former.value(), " of ", kept.name,
                                        " was fenced, and another process has the name now"),
                           true);
    }
    Fence(incarnation, "a newer process took its name", false);
    break;
  }
  last_incarnation = last_incarnation.Next();
  WorkerState& worker = workers[last_incarnation];
  worker.name = kept.name;
  worker.nonce = kept.nonce;
  worker.incarnation = last_incarnation;
  worker.session = session;
  worker.compute_fingerprint = kept.compute_fingerprint;
  worker.state = "connecting to the servers";
  worker.weight = WeightOf(worker.name);
  leases.Grant(worker.incarnation, now);
  membership_epoch = membership_epoch.Next();
  SendToServers(Members{membership_epoch, false, {{worker.incarnation, worker.name}}, {}});
  WelcomeWorker(worker);
}

// Share of the global batch, where it is given by the cluster file or the experiment.
double Chief::Impl::WeightOf(const std::string& worker) const {
  const auto listed = std::find(options.listed_workers.begin(), options.listed_workers.end(), worker);
  const auto index = static_cast<std::size_t>(listed - options.listed_workers.begin());
  if (index < options.batch_sizes.size()) return static_cast<double>(options.batch_sizes[index]);
  const BatchingConfig& batching = options.experiment.batching;
  if (index < batching.speeds.size()) return batching.speeds[index];
  return 1;
}

void Chief::Impl::WelcomeWorker(const WorkerState& worker) {
  Welcome welcome{worker.incarnation,
                  job_id,
                  options.experiment.canonical_json,
                  options.experiment.membership.lease / std::chrono::milliseconds(1),
                  options.experiment.membership.renew / std::chrono::milliseconds(1),
                  {},
                  tensors,
                  options.experiment.train.bucket_bytes,
                  options.experiment.train.seed};
  welcome.servers = ServerAddresses();
  Send(worker.session, std::move(welcome));
}

void Chief::Impl::ResumeWorkerSession(WorkerState& worker) {
  leases.Renew(worker.incarnation, now);
  WelcomeWorker(worker);
  if (worker.leaving) Send(worker.session, LeaveNow{worker.leave_reason});
  if (!worker.rank) return;
  Send(worker.session, Admitted{*worker.rank});
  if (worker.bound) {
    const UpdateState& update = updates.at(*worker.bound);
    const auto left = std::max<Duration>(update.deadline - now, Duration::zero());
    Send(worker.session, Ticket{update.share.update, update.share.epoch, update.share.positions, true,
                                Version{generation, update.bound_at}, left / std::chrono::milliseconds(1)});
  }
  if (worker.provisional) {
    const Share& share = *worker.provisional;
    Send(worker.session, Ticket{share.update, share.epoch, share.positions, false, {}, 0});
  }
}

std::vector<ServerAddress> Chief::Impl::ServerAddresses() const {
  std::vector<ServerAddress> addresses;
  for (const ServerState& server : servers) addresses.push_back({server.address, server.incarnation, server.name});
  return addresses;
}

void Chief::Impl::ConfigureServers() {
  for (const ServerState& server : servers) {
    if (server.holding.decided.generation <= generation) continue;
    return RollBack(absl::StrCat(server.name, " has lived through more than the log knows"));
  }
  phase = Phase::kConfiguring;
  phase_deadline = now + options.experiment.membership.ps_timeout;
  AppendLog(LayoutRecord{layout, generation, ServerAddresses()});
  had_layout = true;
  for (ServerState& server : servers) {
    server.applied = options.resume ? options.resume->version.commit : CommitNumber(0);
    WelcomeServer(server);
    BringUpServer(server);
  }
}

void Chief::Impl::LoseServer(ServerState& server, const std::string& reason) {
  leases.End(server.incarnation);
  ended_nonces.push_back(server.nonce);
  if (ended_nonces.size() > kEndedNoncesKept) ended_nonces.pop_front();
  RefuseSession(server.session, RefuseReason::kStaleIncarnation, absl::StrCat(server.name, " is fenced: ", reason),
                server.session != SessionId{});
  Say(absl::StrCat(server.name, " at ", server.address, " is lost: ", reason), LogLevel::kWarning);
  const std::string name = server.name;
  server = ServerState{};
  server.name = name;
  server.lost = had_layout;
  replace_until = now + options.experiment.membership.ps_replacement_timeout;
  // The last checkpoint is complete: the parameters are not needed any more.
  if (phase == Phase::kGathering || phase == Phase::kFinalScore || phase == Phase::kEnded) return;
  RollBack(absl::StrCat(name, " is lost"));
}

void Chief::Impl::OnConfigured(ServerState& server, const Envelope& envelope, const Configured& configured) {
  if (configured.server != PlaceOf(server) || phase != Phase::kConfiguring) return;
  if (configured.version.generation != generation || envelope.layout != layout) return;
  if (server.configured) return;
  server.configured = true;
  server.owned_floats = configured.owned_floats;
  server.state = "serving";
  if (configured.owned_floats == 0) {
    Say(absl::StrCat(server.name, " owns nothing: there are more servers than stripes of parameters"),
        LogLevel::kWarning);
  }
  if (!std::all_of(servers.begin(), servers.end(), [](const ServerState& s) { return s.configured; })) return;
  phase = Phase::kRunning;
  phase_deadline = first_grant_done ? kNever : now + options.experiment.membership.join_timeout;
  Say(absl::StrCat("all ", servers.size(), " servers hold version ", ToString(version())));
  const bool went_on = continuing || switching;
  continuing = switching = false;
  if (stop_wanted) {
    Stop(*std::exchange(stop_wanted, std::nullopt));
  } else if (!durable || (went_on && checkpoint_due && !training_complete())) {
    StartCheckpoint();
  }
  // Servers may have other addresses now.
  for (auto& [incarnation, worker] : workers) {
    if (worker.session != SessionId{}) ResumeWorkerSession(worker);
  }
  std::map<SessionId, Join> joins = std::exchange(waiting, {});
  for (auto& [session, join] : joins) OnWorkerJoin(session, join);
}

void Chief::Impl::OnReady(SessionId session, const Ready& ready) {
  WorkerState* worker = WorkerBySession(session);
  if (worker->ready) return;
  worker->ready = true;
  worker->timed = {ready.fixed_seconds, ready.seconds_per_sample};
  worker->state = "ready";
}

void Chief::Impl::OnRenew(SessionId session, const Envelope& envelope, const Renew& renew) {
  if (evaluators.contains(session)) return;
  if (!leases.Renew(envelope.sender, now)) {
    return RefuseSession(session, RefuseReason::kStaleIncarnation,
                         absl::StrCat("the lease of incarnation ", envelope.sender.value(), " has ended"), true);
  }
  const TimePoint since = now - Milliseconds(std::clamp<std::int64_t>(renew.since_ms, 0, 1'000'000'000'000));
  if (WorkerState* worker = WorkerBySession(session)) {
    worker->state = renew.state;
    worker->state_since = since;
  }
  if (ServerState* server = ServerBySession(session)) {
    server->state = renew.state;
    server->state_since = since;
  }
}

void Chief::Impl::BeginToLeave(WorkerState& worker, const std::string& reason) {
  if (!std::exchange(worker.leaving, true)) {
    worker.leave_reason = reason;
    Say(absl::StrCat(worker.name, " leaves", worker.bound ? " once its update is decided: " : ": ", reason));
    ReleaseProvisional(worker);
    if (batches) batches->RemoveWorker(worker.incarnation);
  }
  Send(worker.session, LeaveNow{worker.leave_reason});
}

OrderReply Chief::Impl::OnDrain(const std::string& name) {
  if (phase == Phase::kEnded) return {false, "the job is over; everyone leaves", false};
  if (name.starts_with("ps:")) return OnDrainServer(name);
  const std::string reason = "evenkeel drain";
  std::vector<std::string> names;
  for (auto& [session, join] : waiting) {
    names.push_back(join.name);
    if (join.name != name) continue;
    Send(session, LeaveNow{reason});
    return {true, absl::StrCat(name, " leaves; it had not begun to train"), false};
  }
  for (auto& [incarnation, worker] : workers) {
    names.push_back(worker.name);
    if (worker.name != name) continue;
    BeginToLeave(worker, reason);
    if (worker.session == SessionId{}) {
      return {true, absl::StrCat(name, " is not connected; it leaves when it comes back, or when its lease ends"),
              false};
    }
    return {true, absl::StrCat(name, worker.bound ? " finishes its update and leaves" : " leaves"), false};
  }
  for (const ServerState& server : servers) names.push_back(server.name);
  for (const ServerState& spare : spares) names.push_back(spare.name);
  return {false, absl::StrCat("there is no member '", name, "'; there are ", absl::StrJoin(names, ", ")), true};
}

// What workers are told while the job stands still.
Waiting Chief::Impl::WaitingNow() const {
  Waiting waiting_now{WaitingFor(), 0};
  if (!waiting_now.for_whom.empty() && phase_deadline != kNever) {
    waiting_now.deadline_ms = std::max<std::int64_t>(1, (phase_deadline - now) / std::chrono::milliseconds(1));
  }
  return waiting_now;
}

bool Chief::Impl::FirstGrantMayCome() {
  if (first_grant_done) return true;
  for (const std::string& name : options.listed_workers) {
    const bool ready = std::any_of(workers.begin(), workers.end(),
                                   [&](const auto& entry) { return entry.second.name == name && entry.second.ready; });
    if (!ready) return false;
  }
  first_grant_done = true;
  phase_deadline = kNever;
  return true;
}

// Ready workers take the lowest free ranks: listed ones in the cluster file's order, then the others as they came.
void Chief::Impl::AdmitReady() {
  std::vector<WorkerState*> ready;
  std::set<Rank> taken;
  for (auto& [incarnation, worker] : workers) {
    if (worker.rank) {
      taken.insert(*worker.rank);
    } else if (worker.ready && !worker.leaving) {
      ready.push_back(&worker);
    }
  }
  if (ready.empty()) return;
  auto place = [&](const WorkerState* worker) {
    return std::find(options.listed_workers.begin(), options.listed_workers.end(), worker->name);
  };
  std::stable_sort(ready.begin(), ready.end(), [&](auto* a, auto* b) { return place(a) < place(b); });
  std::int64_t least = 0;
  bool any = false;
  for (const auto& [incarnation, worker] : workers) {
    if (!worker.rank) continue;
    least = any ? std::min(least, worker.clock) : worker.clock;
    any = true;
  }
  for (WorkerState* worker : ready) {
    if (static_cast<std::int64_t>(taken.size()) >= options.experiment.membership.workers_max) {
      worker->state = "standing by: membership.workers_max workers train";
      if (!std::exchange(worker->standing_by, true)) {
        Say(absl::StrCat(worker->name, " stands by: ", taken.size(), " workers train, membership.workers_max"));
        Send(worker->session, Waiting{absl::StrCat("a place: ", taken.size(),
                                                   " workers train, and membership.workers_max allows no more"),
                                      0});
      }
      continue;
    }
    Rank rank(0);
    while (taken.contains(rank)) rank = rank.Next();
    taken.insert(rank);
    worker->rank = rank;
    worker->clock = least;
    worker->state = "admitted";
    JoinBatches(*worker);
    membership_epoch = membership_epoch.Next();
    AppendLog(AdmissionRecord{worker->incarnation, worker->name, rank, membership_epoch, worker->nonce,
                              worker->compute_fingerprint});
    Send(worker->session, Admitted{rank});
    totals.try_emplace(worker->name);
    Say(absl::StrCat(worker->name, " admitted with rank ", rank.value(), " in membership epoch ",
                     membership_epoch.value()));
  }
}

// Of workers that come under ever new names, one sum is kept for those that went beyond the first few.
void Chief::Impl::ForgetTotals(const std::string& name) {
  const auto gone = totals.find(name);
  const std::vector<std::string>& listed = options.listed_workers;
  if (totals.size() <= kTotalsKept || gone == totals.end() || name == kOtherWorkers ||
      std::find(listed.begin(), listed.end(), name) != listed.end()) {
    return;
  }
  WorkerTotals& others = totals[kOtherWorkers];
  others.commits += gone->second.commits;
  others.samples += gone->second.samples;
  others.steps += gone->second.steps;
  others.step_seconds += gone->second.step_seconds;
  totals.erase(gone);
}

void Chief::Impl::Fence(Incarnation incarnation, const std::string& reason, bool orderly) {
  auto it = workers.find(incarnation);
  if (it == workers.end()) return;
  WorkerState worker = std::move(it->second);
  if (worker.provisional) ledger->Return(worker.provisional->epoch, worker.provisional->positions);
  workers.erase(it);
  leases.End(incarnation);
  if (batches) batches->RemoveWorker(incarnation);
  membership_epoch = membership_epoch.Next();
  if (worker.rank) AppendLog(FenceRecord{incarnation, membership_epoch, reason});
  ended_nonces.push_back(worker.nonce);
  if (ended_nonces.size() > kEndedNoncesKept) ended_nonces.pop_front();
  ForgetTotals(worker.name);
  SendToServers(Members{membership_epoch, false, {}, {incarnation}});
  if (worker.bound) {
    UpdateState& update = updates.at(*worker.bound);
    update.fenced_in = membership_epoch;
    update.deadline = kNever;
  }
  if (orderly) {
    actions.push_back(CloseAction{worker.session});
    Say(absl::StrCat(worker.name, " left: ", reason));
  } else {
    RefuseSession(worker.session, RefuseReason::kStaleIncarnation, absl::StrCat(worker.name, " is fenced: ", reason),
                  worker.session != SessionId{});
    Say(absl::StrCat(worker.name, " is fenced: ", reason), LogLevel::kWarning);
  }
  if (phase != Phase::kRunning || AdmittedCount() >= options.experiment.membership.workers_min) return;
  if (!first_grant_done) return;
  // Too few to go on: nothing commits until others have joined.
  std::vector<UpdateId> all;
  for (const auto& [id, update] : updates) all.push_back(id);
  for (UpdateId id : all) DropUpdate(id, "too few workers");
  phase_deadline = now + options.experiment.membership.join_timeout;
}

}  // namespace evenkeel
