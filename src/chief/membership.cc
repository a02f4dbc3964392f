// Which workers take part: joins, admissions, leases, fences.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

template <class List>
double Mean(const List& list) {
  return std::accumulate(list.begin(), list.end(), 0.0) / static_cast<double>(list.size());
}

}  // namespace

std::string Chief::Impl::MissingMembers() const {
  std::vector<std::string> missing;
  for (const ServerState& server : servers) {
    if (AwaitsFormer() && server.holding == Holding{}) {
      missing.push_back(absl::StrCat("the former ", server.name));
    } else if (server.incarnation == Incarnation{}) {
      missing.push_back(server.name);
    } else if (phase == Phase::kConfiguring && !server.configured) {
      missing.push_back(absl::StrCat(server.name, "'s stripes"));
    }
  }
  absl::flat_hash_set<std::string> joining;
  for (const auto& [session, join] : waiting) joining.insert(join.name);
  auto look_for = [&](const std::string& name) {
    const WorkerState* worker = workers.ByName(name);
    const bool here = (worker != nullptr && !IsAway(*worker) && (worker->ready || phase != Phase::kRunning)) ||
                      joining.contains(name);
    if (!here) missing.push_back(name);
  };
  if (recovering) {
    // One of those that had been there says what the model is; nobody else is awaited.
    for (const auto& [incarnation, member] : log.members) {
      if (tensors.empty()) look_for(member.admission.name);
    }
  } else if (!first_grant_done && !members_came_back) {
    for (const std::string& name : options.listed_workers) look_for(name);
  } else if (!first_grant_done) {
    for (const auto& [incarnation, worker] : workers) look_for(worker.name);
  }
  if (missing.empty() && tensors.empty()) missing.push_back("a first worker");
  if (missing.size() > 8) {
    const std::size_t more = missing.size() - 8;
    missing.resize(8);
    missing.push_back(absl::StrCat(more, " more"));
  }
  return absl::StrJoin(missing, ", ");
}

// A restarted chief knows it and has not heard of it yet.
bool Chief::Impl::IsAway(const WorkerState& worker) { return worker.taken_up && worker.session == SessionId{}; }

// "" or, of workers that are here but not ready: "; worker:1 has joined (warming up)".
std::string Chief::Impl::WhatJoinersDo() const {
  std::string text;
  for (const auto& [incarnation, worker] : workers) {
    if (!worker.ready) absl::StrAppend(&text, "; ", worker.name, " has joined (", worker.state, ")");
  }
  return text;
}

void Chief::Impl::OnJoin(SessionId session, Join& join) {
  if (phase == Phase::kEnded) {
    return Bid(session, join.name);
  }
  if (join.role == Role::kEvaluator) {
    evaluators[session] = join.name;
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
    ForgetTraining();
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
  problem = absl::StrCat("checkpoint ", name, " in ", options.model_dir, " does not fit the experiment: ", problem);
  if (manifest.samples_trained == 0 && log.samples_committed == 0) {
    Say(absl::StrCat(problem, "; nothing was trained in it, so the job begins with this experiment"));
    BeginAnew();
    return true;
  }
  Fail(
      absl::InvalidArgumentError(absl::StrCat(problem, "; use another model_dir, or the experiment it was made with")));
  return false;
}

void Chief::Impl::OnWorkerJoin(SessionId session, Join& join) {
  coming.erase(join.name);
  if (!AdoptOrCompareModel(session, join)) {
    if (phase == Phase::kEnded) Bid(session, join.name);  // it is in no list yet
    return;
  }
  if (const WorkerState* worker = workers.ByNonce(join.nonce)) {
    members_came_back |= worker->taken_up;
    workers.Change(*worker, [session](WorkerState& w) {
      w.session = session;
      w.state = "connected again";
    });
    if (phase >= Phase::kRunning) return ResumeWorkerSession(*worker);
    leases.Renew(worker->incarnation, now);
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
  if (const WorkerState* former = workers.ByName(kept.name)) {
    if (kept.former != Incarnation{} && kept.former != former->incarnation) {
      return RefuseSession(session, RefuseReason::kNameTaken,
                           absl::StrCat("incarnation ", kept.former.value(), " of ", kept.name,
                                        " was fenced, and another process has the name now"),
                           true);
    }
    if (former->session != SessionId{} && kept.former != former->incarnation) {
      return ClaimName(session, kept, former->incarnation);
    }
    Fence(former->incarnation, kept.former == former->incarnation ? kBeginsAnew : kNameTakenOver, false);
  }
  last_incarnation = last_incarnation.Next();
  WorkerState fresh;
  fresh.name = kept.name;
  fresh.nonce = kept.nonce;
  fresh.incarnation = last_incarnation;
  fresh.session = session;
  fresh.compute_fingerprint = kept.compute_fingerprint;
  fresh.state = "connecting to the servers";
  fresh.weight = WeightOf(fresh.name);
  const WorkerState& worker = workers.Add(std::move(fresh));
  leases.Grant(worker.incarnation, now);
  membership_epoch = membership_epoch.Next();
  SendToServers(Members{membership_epoch, false, {{worker.incarnation, worker.name}}, {}});
  WelcomeWorker(worker);
}

// In the cluster file's order; others come after all of them.
std::size_t Chief::Impl::ListedPlace(const std::string& worker) const {
  const auto place = listed_places.find(worker);
  return place == listed_places.end() ? options.listed_workers.size() : place->second;
}

// Share of the global batch, where it is given by the cluster file or the experiment.
double Chief::Impl::WeightOf(const std::string& worker) const {
  const std::size_t index = ListedPlace(worker);
  if (index < options.batch_sizes.size()) return static_cast<double>(options.batch_sizes[index]);
  const BatchingConfig& batching = options.experiment.batching;
  if (index < batching.speeds.size()) return batching.speeds[index];
  if (!options.batch_sizes.empty()) return Mean(options.batch_sizes);
  return batching.speeds.empty() ? 1 : Mean(batching.speeds);
}

// Who trains once this worker does, as far as that is known.
std::int64_t Chief::Impl::ExpectedMembers(const WorkerState& worker) const {
  if (first_grant_done) return workers.training() + (worker.rank ? 0 : 1);
  return static_cast<std::int64_t>(std::max(options.listed_workers.size(), workers.size()));
}

// What its first ticket may have, by what is known before it is ready. Exact where it joins alone and batches are
// equal: a worker that has made itself ready for 85 samples makes the others wait while it does so for 86.
std::int64_t Chief::Impl::ExpectedBatch(const WorkerState& worker) const {
  const std::int64_t members = std::max<std::int64_t>(ExpectedMembers(worker), 1);
  const std::int64_t total = global_batch.size();
  const bool by_size = !options.batch_sizes.empty(), by_speed = !options.experiment.batching.speeds.empty();
  if (!by_size && !by_speed) {
    const std::int64_t place = first_grant_done ? (worker.rank ? *worker.rank : workers.LowestFreeRank()).value()
                                                : static_cast<std::int64_t>(ListedPlace(worker.name));
    return std::max<std::int64_t>(1, total / members + (place < total % members ? 1 : 0));
  }
  const double mean = by_size ? Mean(options.batch_sizes) : Mean(options.experiment.batching.speeds);
  const double share = worker.weight / mean / static_cast<double>(members);
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(total) * std::min(share, 1.0)));
}

// Where a worker leaves or joins, the others' batches become these: who is ready for them costs nobody a wait.
std::vector<std::int64_t> Chief::Impl::LikelyLater(const WorkerState& worker, std::int64_t first) const {
  if (!options.batch_sizes.empty() || !options.experiment.batching.speeds.empty()) return {};
  const std::int64_t known = ExpectedMembers(worker);
  const std::int64_t total = global_batch.size();
  std::set<std::int64_t> sizes;
  for (std::int64_t members = known - 1; members <= known + 1; ++members) {
    if (members < 1 || members > total) continue;
    sizes.insert(total / members);
    if (total % members > 0) sizes.insert(total / members + 1);
  }
  sizes.erase(first);
  return {sizes.begin(), sizes.end()};
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
  welcome.likely_samples = ExpectedBatch(worker);
  welcome.likely_later = LikelyLater(worker, welcome.likely_samples);
  Send(worker.session, std::move(welcome));
  if (!move) return;
  move->connected.erase(worker.incarnation);  // a Welcome takes the streams back
  SendConnectAhead(worker);
}

void Chief::Impl::ResumeWorkerSession(const WorkerState& worker) {
  leases.Renew(worker.incarnation, now);
  WelcomeWorker(worker);
  if (worker.leaving) Send(worker.session, LeaveNow{worker.leave_reason});
  if (!worker.rank) return;
  Send(worker.session, Admitted{*worker.rank});
  if (worker.bound) {
    const UpdateState& update = undecided.At(*worker.bound);
    const TimePoint deadline = undecided.DeadlineOf(update.share.update);
    const Duration left = deadline == kNever ? TicketTime(worker, TotalSize(update.share.positions))
                                             : std::max<Duration>(deadline - now, Duration::zero());
    Send(worker.session,
         Ticket{update.share.update, update.share.epoch, update.share.positions, true,
                Version{generation, update.bound_at}, left / std::chrono::milliseconds(1), update.offer});
  }
  if (worker.provisional) {
    const Share& share = *worker.provisional;
    Send(worker.session, Ticket{share.update, share.epoch, share.positions, false, {}, 0});
  }
}

void Chief::Impl::OnReady(SessionId session, const Ready& ready) {
  const WorkerState* worker = workers.BySession(session);
  // A chief that has been started again took it up as ready, and knows nothing of its memory.
  if (ready.memory_samples > 0) {
    workers.Change(*worker, [&ready](WorkerState& w) { w.memory_samples = ready.memory_samples; });
    if (batches) batches->SetCeiling(worker->incarnation, worker->memory_samples);
  }
  if (worker->ready) return;
  workers.Change(*worker, [&ready](WorkerState& w) {
    w.ready = true;
    w.timed = {ready.fixed_seconds, ready.seconds_per_sample};
    w.state = "ready";
  });
}

void Chief::Impl::OnRenew(SessionId session, const Envelope& envelope, const Renew& renew) {
  if (evaluators.contains(session)) return Send(session, Renewed{});
  if (!leases.Renew(envelope.sender, now)) {
    return RefuseSession(session, RefuseReason::kStaleIncarnation,
                         absl::StrCat("the lease of incarnation ", envelope.sender.value(), " has ended"), true);
  }
  Send(session, Renewed{});
  const TimePoint since = now - Milliseconds(std::clamp<std::int64_t>(renew.since_ms, 0, 1'000'000'000'000));
  if (const WorkerState* worker = workers.BySession(session)) {
    workers.Change(*worker, [&](WorkerState& w) {
      w.state = renew.state;
      w.state_since = since;
      w.data_paths = renew.data_paths;
      if (renew.memory_samples > 0) w.memory_samples = renew.memory_samples;
    });
    if (batches) batches->SetCeiling(worker->incarnation, worker->memory_samples);
    if (!worker->leaving) HolderRenewed(Role::kWorker, worker->name);
  }
  if (ServerState* server = ServerBySession(session)) {
    server->state = renew.state;
    server->state_since = since;
    if (!server->leaving) HolderRenewed(Role::kPs, server->name);
    OnPieces(*server, renew.filled_pieces);
  }
}

void Chief::Impl::BeginToLeave(const WorkerState& worker, const std::string& reason) {
  if (!worker.leaving) {
    workers.Change(worker, [&reason](WorkerState& w) {
      w.leaving = true;
      w.leave_reason = reason;
    });
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
  for (const auto& [incarnation, worker] : workers) {
    names.push_back(worker.name);
    if (worker.name != name) continue;
    BeginToLeave(worker, reason);
    if (worker.session == SessionId{}) {
      return {
          true,
          absl::StrCat(name, " is not connected; it leaves when it comes back, or when its lease ends; a new process ",
                       "of this name joins as any other"),
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
  Waiting waiting_now{WaitingToSay(), 0};
  const TimePoint until = WaitingUntil().at;
  if (!waiting_now.for_whom.empty() && until != kNever) {
    waiting_now.deadline_ms = std::max<std::int64_t>(1, (until - now) / std::chrono::milliseconds(1));
  }
  return waiting_now;
}

bool Chief::Impl::FirstGrantMayCome() {
  if (first_grant_done) return true;
  for (const auto& [incarnation, worker] : workers) {
    if (IsAway(worker)) return false;  // until its lease ends
  }
  for (const std::string& name : options.listed_workers) {
    const WorkerState* worker = workers.ByName(name);
    if (members_came_back ? worker != nullptr && !worker->ready : worker == nullptr || !worker->ready) return false;
  }
  first_grant_done = true;
  phase_deadline = kNever;
  return true;
}

// Ready workers take the lowest free ranks: listed ones in the cluster file's order, then the others as they came.
void Chief::Impl::AdmitReady() {
  if (workers.ready().empty()) return;
  std::vector<const WorkerState*> ready;
  for (Incarnation incarnation : workers.ready()) ready.push_back(&workers.At(incarnation));
  std::stable_sort(ready.begin(), ready.end(),
                   [this](auto* a, auto* b) { return ListedPlace(a->name) < ListedPlace(b->name); });
  const std::int64_t least = workers.LeastClock();
  Rank rank(0);
  for (const WorkerState* worker : ready) {
    const std::int64_t taken = workers.ranks_taken();
    if (taken >= options.experiment.membership.workers_max) {
      const bool said = worker->standing_by;
      workers.Change(*worker, [](WorkerState& w) {
        w.state = "standing by: membership.workers_max workers train";
        w.standing_by = true;
      });
      if (!said) {
        Say(absl::StrCat(worker->name, " stands by: ", taken, " workers train, membership.workers_max"));
        Send(worker->session,
             Waiting{absl::StrCat("a place: ", taken, " workers train, and membership.workers_max allows no more"), 0});
      }
      continue;
    }
    rank = workers.LowestFreeRank(rank);
    workers.Change(*worker, [rank, least](WorkerState& w) {
      w.rank = rank;
      w.clock = least;
      w.state = "admitted";
    });
    JoinBatches(*worker);
    membership_epoch = membership_epoch.Next();
    AppendLog(AdmissionRecord{worker->incarnation, worker->name, rank, membership_epoch, worker->nonce,
                              worker->compute_fingerprint});
    Send(worker->session, Admitted{rank});
    totals.try_emplace(worker->name);
    const std::string text = absl::StrCat(worker->name, " admitted with rank ", rank.value(), " in membership epoch ",
                                          membership_epoch.value());
    Say(text);
    if (first_ticket) NoteMember("admitted", text);
  }
}

// Of workers that come under ever new names, one sum is kept for those that went beyond the first few.
void Chief::Impl::ForgetTotals(const std::string& name) {
  const auto gone = totals.find(name);
  if (totals.size() <= kTotalsKept || gone == totals.end() || name == kOtherWorkers || listed_places.contains(name)) {
    return;
  }
  WorkerTotals& others = totals[kOtherWorkers];
  others.commits += gone->second.commits;
  others.samples += gone->second.samples;
  others.steps += gone->second.steps;
  others.step_seconds += gone->second.step_seconds;
  totals.erase(gone);
}

std::string Chief::Impl::NameOfWorker(Incarnation incarnation) const {
  if (const WorkerState* worker = workers.Find(incarnation)) return worker->name;
  const auto former = log.names.find(incarnation);
  return former == log.names.end() ? kOtherWorkers : former->second;
}

void Chief::Impl::CountCommitted(Incarnation incarnation, std::int64_t count) {
  const std::string name = NameOfWorker(incarnation);
  WorkerTotals& total = totals[name];
  ++total.commits;
  total.samples += count;
  if (workers.ByName(name) == nullptr) ForgetTotals(name);
}

void Chief::Impl::NoteMember(const char* kind, const std::string& text) {
  member_events.push_back({++last_member_event, kind, text});
  if (member_events.size() > kMemberEventsKept) member_events.pop_front();
}

// It opens its data now, and joins after that.
void Chief::Impl::NoteComing(const std::string& name) {
  if (name.empty() || workers.ByName(name) != nullptr) return;
  std::erase_if(coming,
                [this](const auto& one) { return one.second + options.experiment.membership.join_timeout <= now; });
  if (coming.size() < kMaxComing || coming.contains(name)) coming[name] = now;
  Say(absl::StrCat(name, " has fetched the experiment and opens its data"));
}

void Chief::Impl::Fence(Incarnation incarnation, const std::string& reason, bool orderly) {
  if (workers.Find(incarnation) == nullptr) return;
  const WorkerState worker = workers.Remove(incarnation);
  if (worker.provisional) ledger->Return(worker.provisional->epoch, worker.provisional->positions);
  leases.End(incarnation);
  if (batches) batches->RemoveWorker(incarnation);
  membership_epoch = membership_epoch.Next();
  if (worker.rank) AppendLog(FenceRecord{incarnation, membership_epoch, reason});
  ended_nonces.push_back(worker.nonce);
  if (ended_nonces.size() > kEndedNoncesKept) ended_nonces.pop_front();
  ForgetTotals(worker.name);
  SendToServers(Members{membership_epoch, false, {}, {incarnation}});
  if (worker.bound) undecided.Fence(*worker.bound, membership_epoch);
  if (orderly) {
    actions.push_back(CloseAction{worker.session});
    const std::string text = absl::StrCat(worker.name, " left: ", reason);
    Say(text);
    NoteMember("left", text);
  } else {
    RefuseSession(worker.session, RefuseReason::kStaleIncarnation, absl::StrCat(worker.name, " is fenced: ", reason),
                  worker.session != SessionId{});
    const std::string text = absl::StrCat(worker.name, " is fenced: ", reason);
    Say(text, LogLevel::kWarning);
    NoteMember("fenced", text);
  }
  if (phase != Phase::kRunning || workers.training() >= options.experiment.membership.workers_min) return;
  if (!first_grant_done) return;
  // Too few to go on: nothing commits until others have joined.
  std::vector<UpdateId> all;
  for (const auto& [id, update] : undecided.updates()) all.push_back(id);
  DropUpdates(all, "too few workers");
  Await(options.experiment.membership.join_timeout);
}

}  // namespace evenkeel
