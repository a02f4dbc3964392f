// Checkpoints, scores, and how a job ends.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "chief/chief_impl.h"
#include "evenkeel/core/status.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

using Json = nlohmann::json;

Json RangesToJson(const RangeList& ranges) {
  Json list = Json::array();
  for (const PositionRange& range : ranges) list.push_back({range.begin, range.end});
  return list;
}

// One array a worker's model, in the order of StepTimeModel::State.
Json BatchesToJson(const BatchController::State& state) {
  Json list = Json::array();
  for (const auto& [name, m, ceiling, computing] : state.records) {
    list.push_back({{"name", name},
                    {"ceiling", ceiling},
                    {"computing", computing},
                    {"model",
                     {m.fixed, m.per_sample, m.info_fixed, m.info_cross, m.info_sample, m.target_fixed, m.target_sample,
                      m.prior_fixed, m.prior_deviation, m.residual_weight, m.residual_squares}},
                    {"observations", m.observations}});
  }
  return list;
}

BatchController::State BatchesFromJson(const Json& list) {
  BatchController::State state;
  for (const Json& entry : list) {
    BatchController::State::Record record;
    record.name = entry.at("name").get<std::string>();
    record.ceiling = entry.at("ceiling").get<std::int64_t>();
    record.computing = entry.value("computing", 1.0);  // an older program's has none
    double* const fields[] = {
        &record.model.fixed,           &record.model.per_sample,      &record.model.info_fixed,
        &record.model.info_cross,      &record.model.info_sample,     &record.model.target_fixed,
        &record.model.target_sample,   &record.model.prior_fixed,     &record.model.prior_deviation,
        &record.model.residual_weight, &record.model.residual_squares};
    for (std::size_t i = 0; i < std::size(fields); ++i) *fields[i] = entry.at("model").at(i).get<double>();
    record.model.observations = entry.at("observations").get<std::int64_t>();
    state.records.push_back(std::move(record));
  }
  return state;
}

Json TotalsToJson(const std::map<std::string, WorkerTotals>& totals) {
  Json list = Json::object();
  for (const auto& [name, total] : totals) {
    list[name] = {total.commits, total.samples, total.steps, total.step_seconds};
  }
  return list;
}

std::map<std::string, WorkerTotals> TotalsFromJson(const Json& list) {
  std::map<std::string, WorkerTotals> totals;
  for (const auto& [name, entry] : list.items()) {
    totals[name] = WorkerTotals{entry.at(0).get<std::int64_t>(), entry.at(1).get<std::int64_t>(),
                                entry.at(2).get<std::int64_t>(), entry.at(3).get<double>()};
  }
  return totals;
}

Json NoiseToJson(const GradientNoise::State& state) {
  return {{"steps", state.steps},
          {"noise", state.noise},
          {"gradient", state.gradient},
          {"update_squared", state.update_squared},
          {"step_squared", state.step_squared}};
}

GradientNoise::State NoiseFromJson(const Json& json) {
  GradientNoise::State state;
  state.steps = json.at("steps").get<std::int64_t>();
  state.noise = json.at("noise").get<double>();
  state.gradient = json.at("gradient").get<double>();
  state.update_squared = json.at("update_squared").get<double>();
  state.step_squared = json.at("step_squared").get<double>();
  return state;
}

}  // namespace

// --- checkpoints ----------------------------------------------------------------------------------------------------

void Chief::Impl::NoteCheckpointDue(bool epoch_completed) {
  const CheckpointConfig& config = options.experiment.checkpoint;
  if (config.every_commits > 0) {
    checkpoint_due |= static_cast<std::int64_t>(commit.value()) % config.every_commits == 0;
  }
  if (config.every_seconds > 0) checkpoint_due |= ToSeconds(now - last_checkpoint_at) >= config.every_seconds;
  if (config.every_commits == 0 && config.every_seconds == 0) checkpoint_due |= epoch_completed;
}

void Chief::Impl::StartCheckpoint() {
  checkpoint_due = false;
  last_checkpoint_at = now;
  // What a restart needs of the log begins here.
  SegmentRecord segment = log.Segment();
  segment.version = version();
  actions.push_back(CutLogAction{});
  AppendLog(std::move(segment));
  checkpoint.emplace();
  checkpoint->manifest = FreezeManifest();
  checkpoint->parts.resize(servers.size());
  const Version at = checkpoint->manifest.version;
  for (std::uint32_t i = 0; i < servers.size(); ++i) {
    Send(servers[i].session, Snapshot{at, CheckpointFolder(options.model_dir, at),
                                      PartFileName(ServerIndex(i), static_cast<std::uint32_t>(servers.size()))});
  }
}

Manifest Chief::Impl::FreezeManifest() const {
  Manifest manifest;
  manifest.job_id = job_id;
  manifest.spec_hash = options.experiment.spec_hash;
  manifest.experiment_json = options.experiment.canonical_json;
  manifest.term = options.term;
  manifest.version = version();
  manifest.seed = options.experiment.train.seed;
  manifest.tensors = tensors;
  manifest.optimizer = options.experiment.train.optimizer;
  const auto division = ParameterLayout::Create(tensors, options.experiment.train.bucket_bytes, 1);
  EK_CHECK(division.ok());
  manifest.parameter_floats = division->parameter_floats();
  manifest.total_floats = division->total_floats();
  manifest.data_fingerprint = data_fingerprint;
  manifest.data_statistics_json = data_statistics_json;
  manifest.samples_trained = samples_trained;
  manifest.epochs = static_cast<double>(samples_trained) / static_cast<double>(samples);
  manifest.chief_state = EncodeState();
  manifest.created_unix_ms = started_unix_ms + (now - started) / std::chrono::milliseconds(1);
  return manifest;
}

void Chief::Impl::OnSnapshotDone(ServerState& server, const SnapshotDone& done) {
  if (!checkpoint || checkpoint->manifest.version != done.version || checkpoint->writing_manifest) return;
  if (!done.error.empty()) {
    checkpoint->failure =
        absl::StrCat("checkpoint ", CheckpointName(done.version), " failed on ", server.name, ": ", done.error);
  }
  checkpoint->parts[static_cast<std::size_t>(&server - servers.data())] = PartInfo{done.file, done.bytes, done.crc32c};
  if (!std::all_of(checkpoint->parts.begin(), checkpoint->parts.end(),
                   [](const auto& part) { return part.has_value(); })) {
    return;
  }
  if (!checkpoint->failure.empty()) {
    // Only now: a server that still writes could not take the next one.
    const std::string text = std::move(checkpoint->failure);
    checkpoint.reset();
    if (phase == Phase::kEnding && done.version == version()) return Fail(absl::InternalError(text));
    return Say(text, LogLevel::kError);
  }
  for (const auto& part : checkpoint->parts) checkpoint->manifest.parts.push_back(*part);
  KeepNewestNorms(checkpoint->manifest);
  checkpoint->manifest.final = phase == Phase::kEnding && end_status == "finished" && done.version == version();
  checkpoint->writing_manifest = true;
  actions.push_back(SyncLogAction{});
  actions.push_back(WriteManifestAction{checkpoint->manifest});
}

void Chief::Impl::ManifestWritten(Version at, const absl::Status& status) {
  if (!checkpoint || checkpoint->manifest.version != at) return;
  Manifest manifest = std::move(checkpoint->manifest);
  checkpoint.reset();
  if (!status.ok()) {
    const std::string text = absl::StrCat("checkpoint ", CheckpointName(at), ": ", status.message());
    if (phase == Phase::kEnding && at == version()) return Fail(absl::InternalError(text));
    return Say(text, LogLevel::kError);
  }
  AppendLog(CheckpointRecord{at});
  durable = std::move(manifest);
  SendToServers(CheckpointDurable{at, durable->final});
  for (const auto& [session, name] : evaluators) Send(session, CheckpointDurable{at, durable->final});
  Say(absl::StrCat("checkpoint ", CheckpointName(at), " is complete"));
  if (checkpoint_due && phase == Phase::kRunning && !layout_next) StartCheckpoint();
}

// --- scores ---------------------------------------------------------------------------------------------------------

void Chief::Impl::OnEvalReport(const EvalReport& report) {
  last_eval = report;
  std::string text = absl::StrCat("evaluator: ", CheckpointName(report.version));
  for (const auto& [name, value] : report.metrics) absl::StrAppend(&text, " ", name, " ", value);
  Say(text);
  // A resumed job's evaluator may still speak of the checkpoint that was final before.
  if (report.final_score && report.version == version()) final_scored = true;
  if (report.stop && phase <= Phase::kRunning) early_stop = absl::StrCat("early stopping: ", report.reason);
  if (phase == Phase::kFinalScore && final_scored) Finish();
}

// --- the end --------------------------------------------------------------------------------------------------------

void Chief::Impl::Stop(const std::string& reason) {
  BeginEnd("stopped", reason);
  Await(options.experiment.membership.drain);
}

void Chief::Impl::BeginEnd(std::string status, std::string reason) {
  AbandonMove("the job ends");
  phase = Phase::kEnding;
  Await(options.experiment.membership.ps_timeout);
  end_status = std::move(status);
  end_reason = std::move(reason);
  ReleaseProvisional();
  std::vector<UpdateId> open;
  for (const auto& [id, update] : undecided.updates()) open.push_back(id);
  DropUpdates(open, "the job ends");
  Say(absl::StrCat("training is over at ", ToString(version()), end_reason.empty() ? "" : ": ", end_reason));
}

void Chief::Impl::TakeFinalCheckpoint() {
  if (checkpoint) return;  // an earlier one is on its way
  if (durable && durable->version == version() && (durable->final || end_status != "finished")) {
    return AfterFinalCheckpoint();
  }
  if (durable && durable->version == version()) {
    // Its parts are there already; only the manifest says more now.
    checkpoint.emplace();
    checkpoint->manifest = *durable;
    checkpoint->manifest.final = true;
    checkpoint->writing_manifest = true;
    actions.push_back(WriteManifestAction{checkpoint->manifest});
    return;
  }
  StartCheckpoint();
}

void Chief::Impl::AfterFinalCheckpoint() {
  const bool wait = end_status == "finished" && (options.expects_evaluator || evaluator_seen) && !final_scored;
  if (!wait) return Finish();
  phase = Phase::kFinalScore;
  Await(options.experiment.eval.final_timeout);
}

void Chief::Impl::Finish() { EndJob(failure); }

void Chief::Impl::FinishWithoutScore(const std::string& why) {
  absl::StrAppend(&end_reason, end_reason.empty() ? "" : "; ", why, "; ended without the final score");
  Say(end_reason, LogLevel::kWarning);
  Finish();
}

void Chief::Impl::FailWithCheckpoint(absl::Status status) {
  failure = std::move(status);
  BeginEnd("failed", std::string(failure.message()));
}

void Chief::Impl::Fail(absl::Status status) {
  if (phase == Phase::kEnded) return;
  end_status = "failed";
  end_reason = std::string(status.message());
  EndJob(std::move(status));
}

// The job ends as it was to, but without its last checkpoint.
void Chief::Impl::EndStopped(const std::string& why) {
  if (stop_wanted) {
    end_status = "stopped";
    end_reason = *std::exchange(stop_wanted, std::nullopt);
  }
  absl::StrAppend(&end_reason, "; ", why, " before the last checkpoint was complete");
  std::int64_t lost = durable ? samples_trained - durable->samples_trained : samples_trained;
  if (!durable && recovering) {
    // Before the first worker is here nothing of the log is taken up.
    for (const Decision& decision : log.commits) {
      if (decision.version.commit > options.resume->version.commit) lost += decision.samples;
    }
  }
  if (lost == 0 || !failure.ok()) return EndJob(failure);
  if (durable) {  // what the summary says is what survives
    if (absl::Status status = LoadState(*durable); !status.ok()) return Fail(std::move(status));
    samples_rolled_back += lost;
  }
  const Manifest* const last = durable ? &*durable : options.resume ? &*options.resume : nullptr;
  Fail(absl::InternalError(absl::StrCat(end_reason, ": what was trained after ",
                                        last ? CheckpointName(last->version) : "the start", ", ", lost,
                                        " samples, is lost; the same command resumes there")));
}

void Chief::Impl::EndJob(absl::Status status) {
  phase = Phase::kEnded;
  phase_deadline = kNever;
  ended_at = now;
  // A chief that took nothing up, as one that is refused for its seed, leaves the job as it had ended.
  const bool keeps_end = !ledger && options.history.end;
  AppendLog(keeps_end ? *options.history.end : EndRecord{end_status, end_reason});
  actions.push_back(SyncLogAction{});
  Say(absl::StrCat("job ", end_status, end_reason.empty() ? "" : ": ", end_reason));
  const TimePoint latest = now + options.experiment.membership.lease;
  const auto dismiss = [&](SessionId session, const std::string& name, TimePoint until) {
    Bid(session, name);
    AwaitGoodbye(name, std::min(until, latest));
  };
  for (const auto* list : {&servers, &spares}) {
    for (const ServerState& server : *list) {
      if (server.incarnation != Incarnation{}) dismiss(server.session, server.name, leases.Until(server.incarnation));
    }
  }
  for (const auto& [incarnation, worker] : workers) dismiss(worker.session, worker.name, leases.Until(incarnation));
  for (const auto& [session, join] : waiting) dismiss(session, join.name, latest);
  // Who opens its data now would find no chief.
  for (const auto& [name, since] : coming) {
    const TimePoint until = since + options.experiment.membership.lease;
    if (until > now) AwaitGoodbye(name, until);
  }
  for (const auto& [holder, claim] : claims)
    Send(claim.session, JobEnd{end_status != "failed", end_status, end_reason});
  claims.clear();
  for (const auto& [session, name] : evaluators) dismiss(session, name, latest);
  for (const SessionId session : askers) Send(session, StatusReply{StatusJson(now)});
  EndAction action{std::move(status), MakeSummary(), std::nullopt};
  if (durable && durable->version == version()) action.final_checkpoint = durable->version;
  action.keeps_summary = !ledger;
  actions.push_back(std::move(action));
}

bool Chief::Impl::EndedBefore() const { return options.history.job_id.empty() || options.history.end.has_value(); }

// The job goes on without its chief: whoever leads it with another experiment would send all its members away, and with
// them what no checkpoint holds. Nothing is said to them, so that they wait for the right one.
void Chief::Impl::GiveUpTo(const Join* member, const std::string& difference) {
  const std::string name = member != nullptr ? member->name : "a member";
  phase = Phase::kEnded;
  phase_deadline = kNever;
  given_up = true;
  const absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("the job in ", options.model_dir, " still runs with another experiment: ", name,
                   " is here and waits for its chief", difference,
                   "; start the chief with that experiment, or stop the job's servers and workers first"));
  Say(std::string(status.message()), LogLevel::kError);
  EndAction action{status, MakeSummary(), std::nullopt};
  action.keeps_summary = true;
  actions.push_back(std::move(action));
}

void Chief::Impl::Bid(SessionId session, const std::string& member) {
  if (session == SessionId{}) return;
  told[session] = member;
  Send(session, JobEnd{end_status != "failed", end_status, end_reason});
}

// A message that was sent is not heard where the stream broke: the member comes back and is told again.
void Chief::Impl::AwaitGoodbye(const std::string& member, TimePoint until) {
  TimePoint& latest = unheard.try_emplace(member, until).first->second;
  latest = std::max(latest, until);
}

void Chief::Impl::OnGoodbye(SessionId session) {
  if (const auto member = told.find(session); member != told.end()) unheard.erase(member->second);
  actions.push_back(CloseAction{session});
}

// Of the whole job, without the times at which it had no chief.
double Chief::Impl::TrainingSeconds(TimePoint at) const {
  return seconds_before + (first_ticket ? ToSeconds(at - *first_ticket) : 0);
}

Summary Chief::Impl::MakeSummary() const {
  Summary summary;
  summary.status = end_status;
  summary.reason = end_reason;
  summary.commits = static_cast<std::int64_t>(commit.value());
  summary.samples_trained = samples_trained;
  summary.dropped_updates = dropped_updates;
  summary.samples_rolled_back = samples_rolled_back;
  if (ledger) {
    summary.epochs = ledger->completed_epochs();
    summary.samples_per_epoch = ledger->spent_per_epoch();
    while (!summary.samples_per_epoch.empty() && summary.samples_per_epoch.back() == 0) {
      summary.samples_per_epoch.pop_back();
    }
  }
  summary.wall_seconds = TrainingSeconds(trained_until.value_or(now));
  const std::int64_t timed = log.samples_committed - samples_untimed;
  if (summary.wall_seconds > 0) summary.examples_per_second = static_cast<double>(timed) / summary.wall_seconds;
  if (any_loss) summary.train_loss = last_loss;
  if (last_eval) {
    if (last_eval->version == version()) summary.eval = last_eval->metrics;
    if (!last_eval->best_metric.empty()) {
      summary.best =
          Summary::Best{CheckpointName(last_eval->best_version), last_eval->best_metric, last_eval->best_value};
    }
  }
  for (const auto& [name, total] : totals) {
    WorkerSummary worker;
    worker.id = name;
    worker.commits = total.commits;
    worker.samples = total.samples;
    if (total.commits > 0) worker.mean_batch = static_cast<double>(total.samples) / static_cast<double>(total.commits);
    if (total.steps > 0) worker.mean_step_seconds = total.step_seconds / static_cast<double>(total.steps);
    summary.workers.push_back(std::move(worker));
  }
  return summary;
}

// --- what a checkpoint keeps of the chief
// -----------------------------------------------------------------------------

std::string Chief::Impl::EncodeState() const {
  const SampleLedger::Snapshot ledger_state = ledger->Save();
  Json state;
  state["format"] = 1;
  state["first_open_epoch"] = ledger_state.first_open;
  state["spent"] = Json::array();
  for (const RangeList& ranges : ledger_state.spent) state["spent"].push_back(RangesToJson(ranges));
  state["spent_per_epoch"] = ledger_state.spent_per_epoch;
  state["samples_per_epoch"] = samples;
  state["samples_trained"] = samples_trained;
  state["dropped_updates"] = dropped_updates;
  state["chain_hash"] = chain_hash;
  state["batches"] = batches ? BatchesToJson(batches->Save()) : Json(nullptr);
  state["gradient_noise"] = noise ? NoiseToJson(noise->Save()) : Json(nullptr);
  state["global_batch_size"] = global_batch.size();
  state["global_batch_changed_at"] = global_batch.changed_at();
  state["train_loss"] = any_loss ? Json(last_loss) : Json(nullptr);
  state["workers"] = TotalsToJson(totals);
  return state.dump();
}

// Its own commit's norms come after the rest was frozen; who goes on from here learns from them first, as the job did.
void Chief::Impl::KeepNewestNorms(Manifest& manifest) const {
  if (!noise) return;
  std::optional<StepNorms> norms = checkpoint->norms;
  for (const MeasuredStep& step : measured) {
    if (step.version == manifest.version) norms = NormsOf(step);
  }
  if (!norms) return;
  Json state = Json::parse(manifest.chief_state);
  Json& kept = state["newest_norms"];
  kept["squared_sum"] = norms->squared_sum;
  kept["updates"] = Json::array();
  for (const UpdateNorm& update : norms->updates) kept["updates"].push_back({update.samples, update.squared_sum});
  manifest.chief_state = state.dump();
}

absl::Status Chief::Impl::LoadState(const Manifest& manifest) {
  const Json state = Json::parse(manifest.chief_state, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || state.value("format", 0) != 1) {
    return absl::DataLossError("its chief state is not of format 1");
  }
  try {
    SampleLedger::Snapshot snapshot;
    snapshot.first_open = state.at("first_open_epoch").get<std::uint64_t>();
    snapshot.spent_per_epoch = state.at("spent_per_epoch").get<std::vector<std::int64_t>>();
    for (const Json& epoch : state.at("spent")) {
      RangeList ranges;
      for (const Json& range : epoch)
        ranges.push_back({range.at(0).get<std::int64_t>(), range.at(1).get<std::int64_t>()});
      snapshot.spent.push_back(std::move(ranges));
    }
    if (state.at("samples_per_epoch").get<std::int64_t>() != samples) {
      return absl::InvalidArgumentError(
          absl::StrCat("its epochs have ", state.at("samples_per_epoch").dump(), " samples, the data has ", samples));
    }
    EK_ASSIGN_OR_RETURN(SampleLedger loaded, SampleLedger::Load(samples, options.experiment.train.epochs, snapshot));
    ledger = std::move(loaded);
    samples_trained = state.at("samples_trained").get<std::int64_t>();
    dropped_updates = state.at("dropped_updates").get<std::int64_t>();
    chain_hash = state.at("chain_hash").get<std::uint64_t>();
    commit = manifest.version.commit;
    // Only a better start: a job may have begun without it.
    if (batches && phase == Phase::kGathering && workers.empty() && state.contains("batches") &&
        state.at("batches").is_array()) {
      EK_RETURN_IF_ERROR(batches->Load(BatchesFromJson(state.at("batches"))));
    }
    // A checkpoint of an older program has none.
    totals = TotalsFromJson(state.value("workers", Json::object()));
    if (noise && state.contains("gradient_noise") && state.at("gradient_noise").is_object() &&
        !noise->Restore(NoiseFromJson(state.at("gradient_noise")))) {
      return absl::DataLossError("its gradient_noise are no means of norms");
    }
    global_batch.Restore(state.value("global_batch_size", options.experiment.train.global_batch_size),
                         state.value("global_batch_changed_at", std::int64_t{0}));
    restored_norms.reset();
    if (noise && state.contains("newest_norms")) {
      restored_norms.emplace();
      for (const Json& update : state.at("newest_norms").at("updates")) {
        restored_norms->updates.push_back({update.at(0).get<std::int64_t>(), update.at(1).get<double>()});
      }
      restored_norms->squared_sum = state.at("newest_norms").at("squared_sum").get<double>();
    }
    if (state.at("train_loss").is_number()) {
      last_loss = state.at("train_loss").get<double>();
      any_loss = true;
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat("its chief state is damaged: ", error.what()));
  }
  return absl::OkStatus();
}

}  // namespace evenkeel
