// What the chief tells about the job.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "chief/chief_impl.h"
#include "nlohmann/json.hpp"

namespace evenkeel {

// Whom the job waits for when it stands still, else "".
std::string Chief::Impl::WaitingFor() const {
  switch (phase) {
    case Phase::kReading:
      return "the decisions that the log has lost";
    case Phase::kGathering:
    case Phase::kConfiguring:
      return MissingMembers();
    case Phase::kRunning: {
      if (!first_grant_done) return MissingMembers();
      const std::int64_t least = options.experiment.membership.workers_min;
      if (workers.training() < least) {
        return absl::StrCat("workers: ", workers.training(), " of at least ", least, " are here");
      }
      std::string names;
      for (const auto* list : {&servers, &spares}) {
        for (const ServerState& server : *list) {
          // Until then training goes on.
          if (move && move->filling && AwaitedInMove(server))
            absl::StrAppend(&names, names.empty() ? "" : ", ", server.name, "'s new stripes");
        }
      }
      return names;
    }
    case Phase::kEnding: {
      if (!checkpoint) return "the last checkpoint";
      std::string names;
      for (std::size_t i = 0; i < checkpoint->parts.size(); ++i) {
        if (!checkpoint->parts[i]) absl::StrAppend(&names, names.empty() ? "" : ", ", servers[i].name);
      }
      return absl::StrCat("the last checkpoint", names.empty() ? "" : " of ", names);
    }
    case Phase::kFinalScore:
      return "the evaluator's final score";
    case Phase::kEnded:
      return "";
  }
  return "";
}

std::string Chief::Impl::WaitingToSay() const {
  std::vector<std::string> names;
  if (phase == Phase::kRunning && move && move->filling &&
      workers.training() >= options.experiment.membership.workers_min) {
    for (const auto* list : {&servers, &spares}) {
      for (const ServerState& server : *list) {
        const auto& members = move->members;
        if (std::count(members.begin(), members.end(), server.incarnation) > 0) names.push_back(server.name);
      }
    }
  } else if (phase == Phase::kConfiguring) {
    for (const ServerState& server : servers) names.push_back(server.name);
  } else {
    return WaitingFor();
  }
  std::sort(names.begin(), names.end());
  return absl::StrCat("the stripes of ", absl::StrJoin(names, ", "));
}

WaitingEnd Chief::Impl::WaitingUntil() const {
  const auto present = [](const ServerState& server) { return server.incarnation != Incarnation{}; };
  switch (phase) {
    case Phase::kGathering: {
      const bool all = std::all_of(servers.begin(), servers.end(), present);
      const bool some = std::any_of(servers.begin(), servers.end(), present);
      if (AwaitsFormer()) {
        return {FormerAwaitedUntil(), "all go back to the last checkpoint", "they come"};
      }
      if (had_layout && some && !all && replace_until < phase_deadline) {
        return {replace_until, "the job goes on with the servers that are here", "they come"};
      }
      return {phase_deadline, "the job ends", "they come"};
    }
    case Phase::kReading:
    case Phase::kConfiguring:
      return {phase_deadline, "the job ends", "they are there"};
    case Phase::kRunning: {
      const std::int64_t least = options.experiment.membership.workers_min;
      const std::int64_t here = workers.training();
      if (first_grant_done && here < least) return {phase_deadline, "the job ends", "more workers join"};
      if (!first_grant_done) {
        const bool enough = here + static_cast<std::int64_t>(workers.ready().size()) >= least;
        return {phase_deadline, enough ? "training begins without them" : "the job ends", "they come"};
      }
      return {move ? move->deadline : kNever, "the move is given up", "more of them comes"};
    }
    case Phase::kEnding:
      return {phase_deadline, "the job fails", "it is complete"};
    case Phase::kFinalScore:
      return {phase_deadline, "the job ends without it", "it comes"};
    case Phase::kEnded:
      return {};
  }
  return {};
}

namespace {

// How far the job has come, also before the model is known and its checkpoint and log are taken up.
struct Standing {
  CommitNumber commit;
  std::int64_t samples_trained = 0, samples = 0;
  std::optional<double> loss;
};

// By the checkpoint, and by the log's commits after it where they may be gone on with.
Standing StandingBefore(const Manifest& manifest, const std::deque<Decision>* commits) {
  Standing standing{manifest.version.commit, manifest.samples_trained, 0, std::nullopt};
  const auto state = nlohmann::json::parse(manifest.chief_state, nullptr, /*allow_exceptions=*/false);
  if (state.is_object()) {
    if (const auto found = state.find("samples_per_epoch"); found != state.end() && found->is_number_integer()) {
      standing.samples = found->get<std::int64_t>();
    }
    if (const auto found = state.find("train_loss"); found != state.end() && found->is_number()) {
      standing.loss = found->get<double>();
    }
  }
  if (commits == nullptr) return standing;
  for (const Decision& decision : *commits) {
    if (decision.version.commit != standing.commit.Next()) continue;
    standing.commit = decision.version.commit;
    standing.samples_trained += decision.samples;
    standing.loss = decision.loss_sum / static_cast<double>(decision.samples);
  }
  return standing;
}

nlohmann::json LeaseLeft(const LeaseTable& leases, Incarnation member, TimePoint at) {
  const TimePoint until = leases.Until(member);
  return until == kNever ? nlohmann::json(nullptr) : nlohmann::json(ToSeconds(until - at));
}

nlohmann::json SecondsSince(const std::optional<TimePoint>& since, TimePoint at) {
  return since ? nlohmann::json(ToSeconds(at - *since)) : nlohmann::json(nullptr);
}

// Where the samples of the open epochs are.
nlohmann::json LedgerJson(const SampleLedger& ledger, const UpdateTable& undecided, const WorkerTable& workers) {
  std::int64_t computed = 0, ahead = 0;
  for (const auto& [id, update] : undecided.updates()) computed += TotalSize(update.share.positions);
  for (const auto& [incarnation, worker] : workers) {
    if (worker.provisional) ahead += TotalSize(worker.provisional->positions);
  }
  const auto next = ledger.NextEpoch();
  return {{"samples", ledger.samples()},
          {"completed_epochs", ledger.completed_epochs()},
          {"next_epoch", next ? nlohmann::json(next->value()) : nlohmann::json(nullptr)},
          {"free", ledger.FreeTotal()},
          {"free_in_next_epoch", next ? ledger.FreeIn(*next) : 0},
          {"in_updates", computed},
          {"granted_ahead", ahead}};
}

}  // namespace

nlohmann::json Chief::Impl::NoiseJson() const {
  using Json = nlohmann::json;
  if (!noise) return nullptr;
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  return {{"steps", noise->steps()},
          {"gradient_norm", number(gradient_norm)},
          {"noise_scale", number(noise->NoiseScale())},
          {"statistical_efficiency", number(noise->Efficiency())}};
}

// At the measured rate.
double Chief::Impl::SecondsLeft() const {
  const TrainConfig& train = options.experiment.train;
  double left = train.epochs > 0 ? static_cast<double>(train.epochs * samples - samples_trained) : 1e300;
  if (train.max_commits > 0 && commit.value() > 0) {
    const double per_commit = static_cast<double>(samples_trained) / static_cast<double>(commit.value());
    left =
        std::min(left, per_commit * static_cast<double>(train.max_commits - static_cast<std::int64_t>(commit.value())));
  }
  return std::max(0.0, left) / rate;
}

void Chief::Impl::AddMembers(nlohmann::json& json, TimePoint at) const {
  using Json = nlohmann::json;
  json["layout"] = layout.value();
  json["servers_wanted"] = target_servers ? Json(*target_servers) : Json(nullptr);
  for (const auto& [key, list] : {std::pair("servers", &servers), std::pair("spare_servers", &spares)}) {
    json[key] = Json::array();
    for (const ServerState& server : *list) {
      json[key].push_back({{"name", server.name},
                           {"address", server.address},
                           {"incarnation", server.incarnation.value()},
                           {"connected", server.session != SessionId{}},
                           {"leaving", server.leaving},
                           {"applied", server.applied.value()},
                           {"owned_bytes", server.owned_floats * 4},
                           {"lease_seconds_left", LeaseLeft(leases, server.incarnation, at)},
                           {"state", server.state},
                           {"state_seconds", SecondsSince(server.state_since, at)}});
    }
  }
  json["workers"] = Json::array();
  for (const auto& [incarnation, worker] : workers) {
    Json entry{{"name", worker.name},
               {"incarnation", incarnation.value()},
               {"rank", worker.rank ? Json(worker.rank->value()) : Json(nullptr)},
               {"connected", worker.session != SessionId{}},
               {"leaving", worker.leaving},
               {"standing_by", worker.standing_by && !worker.rank},
               {"clock", worker.clock},
               {"step_seconds", worker.step_seconds},
               {"busy_seconds", worker.busy_seconds},
               {"predicted_seconds", worker.predicted_seconds},
               {"waiting_share", worker.waiting_share},
               {"gradient_norm", worker.gradient_norm},
               {"memory_samples", worker.memory_samples},
               {"state", worker.state},
               {"state_seconds", SecondsSince(worker.state_since, at)}};
    entry["data_paths"] = std::vector<std::string>(absl::StrSplit(worker.data_paths, ',', absl::SkipEmpty()));
    entry["lease_seconds_left"] = LeaseLeft(leases, incarnation, at);
    entry["batch"] = worker.bound ? TotalSize(undecided.At(*worker.bound).share.positions) : 0;
    json["workers"].push_back(std::move(entry));
  }
  json["joining"] = Json::array();
  for (const auto& [session, join] : waiting) json["joining"].push_back(join.name);
  for (const auto& [role_and_name, claim] : claims) json["joining"].push_back(claim.join.name);
  json["coming"] = Json::array();
  for (const auto& [name, since] : coming) {
    if (since + options.experiment.membership.join_timeout <= at) continue;
    json["coming"].push_back({{"name", name}, {"seconds", ToSeconds(at - since)}});
  }
  json["worker_totals"] = Json::object();
  for (const auto& [name, total] : totals) {
    json["worker_totals"][name] = {{"commits", total.commits}, {"samples", total.samples}};
  }
  json["member_events"] = Json::array();
  for (const MemberEvent& event : member_events) {
    json["member_events"].push_back({{"number", event.number}, {"kind", event.kind}, {"text", event.text}});
  }
}

// Without a connection, or silent for longer than its renewals have between them.
bool Chief::Impl::SeemsAway(SessionId session, Incarnation member, TimePoint at) const {
  const MembershipConfig& membership = options.experiment.membership;
  const TimePoint until = leases.Until(member);
  return session == SessionId{} || (until != kNever && until - at < membership.lease - membership.renew * 5 / 2);
}

std::pair<std::string, WaitingEnd> Chief::Impl::WaitingForAway(TimePoint at) const {
  if (phase != Phase::kRunning) return {};
  std::vector<std::string> names;
  TimePoint until = kNever;
  const bool stands_still = !last_commit_at || at - *last_commit_at >= options.experiment.membership.renew * 5 / 2;
  for (const ServerState& server : servers) {
    if (!stands_still || !SeemsAway(server.session, server.incarnation, at)) continue;
    names.push_back(server.name);
    until = std::min(until, leases.Until(server.incarnation));
  }
  if (!names.empty()) {
    return {absl::StrJoin(names, ", "), WaitingEnd{until, "all go back to the last checkpoint", "they answer"}};
  }
  for (const auto& [id, update] : undecided.updates()) {
    if (update.staged_everywhere()) continue;
    const WorkerState* worker = workers.Find(update.share.worker);
    if (worker == nullptr || !SeemsAway(worker->session, worker->incarnation, at))
      return {};  // it goes on with this one
    names.push_back(worker->name);
    until = std::min(until, leases.Until(worker->incarnation));
  }
  if (names.empty()) return {};
  return {absl::StrJoin(names, ", "), WaitingEnd{until, "their samples go to the others", "they come back"}};
}

std::string Chief::Impl::StatusJson(TimePoint at) const {
  using Json = nlohmann::json;
  const TrainConfig& train = options.experiment.train;
  Json json;
  json["job_id"] = job_id;
  json["name"] = options.experiment.name;
  json["phase"] = ToString(phase);
  json["status"] = end_status;
  json["reason"] = end_reason;
  std::string waiting_for = phase == Phase::kEnded ? "" : WaitingFor();
  WaitingEnd waiting_end = waiting_for.empty() ? WaitingEnd{} : WaitingUntil();
  if (waiting_for.empty()) std::tie(waiting_for, waiting_end) = WaitingForAway(at);
  json["waiting_for"] = waiting_for;
  const bool ends = waiting_end.at != kNever;
  json["waiting_seconds_left"] = ends ? Json(std::max(0.0, ToSeconds(waiting_end.at - at))) : Json(nullptr);
  json["waiting_then"] = ends ? waiting_end.then : "";
  json["waiting_unless"] = ends ? waiting_end.unless : "";
  json["sync"] = ToString(train.sync.mode);
  json["term"] = options.term.value();
  json["generation"] = generation.value();
  Standing standing{commit, samples_trained, samples, any_loss ? std::optional(last_loss) : std::nullopt};
  if (!ledger && options.resume) standing = StandingBefore(*options.resume, recovering ? &log.commits : nullptr);
  json["commit"] = standing.commit.value();
  json["membership_epoch"] = membership_epoch.value();
  json["samples_trained"] = standing.samples_trained;
  json["dropped_updates"] = dropped_updates;
  json["epoch"] =
      standing.samples > 0 ? static_cast<double>(standing.samples_trained) / static_cast<double>(standing.samples) : 0;
  json["epochs"] = train.epochs;
  json["max_commits"] = train.max_commits;
  json["samples_per_epoch"] = ledger ? Json(ledger->spent_per_epoch()) : Json::array();
  json["ledger"] = ledger ? LedgerJson(*ledger, undecided, workers) : Json(nullptr);
  json["workers_min"] = options.experiment.membership.workers_min;
  json["workers_max"] = options.experiment.membership.workers_max;
  json["loss"] = standing.loss ? Json(*standing.loss) : Json(nullptr);
  // What was measured says nothing about a job that stands still.
  const bool moves = phase == Phase::kRunning && waiting_for.empty() && rate > 0;
  json["examples_per_second"] = moves ? Json(rate) : Json(nullptr);
  json["eta_seconds"] = moves ? Json(SecondsLeft()) : Json(nullptr);
  json["global_batch_size"] = global_batch.size();
  json["gradient_noise"] = NoiseJson();
  const std::optional<Manifest>& newest = ledger ? durable : options.resume;
  json["last_checkpoint"] = newest ? Json(CheckpointName(newest->version)) : Json(nullptr);
  json["checkpoint_in_progress"] = checkpoint ? Json(CheckpointName(checkpoint->manifest.version)) : Json(nullptr);
  json["evaluators"] = evaluators.size();
  json["eval"] = nullptr;
  if (last_eval) {
    Json metrics = Json::object();
    for (const auto& [name, value] : last_eval->metrics) metrics[name] = value;
    json["eval"] = {{"checkpoint", CheckpointName(last_eval->version)}, {"metrics", metrics}};
  }
  AddMembers(json, at);
  return json.dump();
}

}  // namespace evenkeel
