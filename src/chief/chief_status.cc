// What the chief tells about the job.
#include <algorithm>

#include "absl/strings/str_cat.h"
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
          if (AwaitedInMove(server)) absl::StrAppend(&names, names.empty() ? "" : ", ", server.name, "'s new stripes");
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

namespace {

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
          {"in_updates", computed},
          {"granted_ahead", ahead}};
}

}  // namespace

std::string Chief::Impl::StatusJson(TimePoint at) const {
  using Json = nlohmann::json;
  const TrainConfig& train = options.experiment.train;
  Json json;
  json["job_id"] = job_id;
  json["name"] = options.experiment.name;
  json["phase"] = ToString(phase);
  json["status"] = end_status;
  json["reason"] = end_reason;
  json["waiting_for"] = phase == Phase::kEnded ? "" : WaitingFor();
  json["sync"] = ToString(train.sync.mode);
  json["term"] = options.term.value();
  json["generation"] = generation.value();
  json["commit"] = commit.value();
  json["membership_epoch"] = membership_epoch.value();
  json["samples_trained"] = samples_trained;
  json["dropped_updates"] = dropped_updates;
  json["epoch"] = samples > 0 ? static_cast<double>(samples_trained) / static_cast<double>(samples) : 0;
  json["epochs"] = train.epochs;
  json["max_commits"] = train.max_commits;
  json["samples_per_epoch"] = ledger ? Json(ledger->spent_per_epoch()) : Json::array();
  json["ledger"] = ledger ? LedgerJson(*ledger, undecided, workers) : Json(nullptr);
  json["workers_min"] = options.experiment.membership.workers_min;
  json["workers_max"] = options.experiment.membership.workers_max;
  json["loss"] = any_loss ? Json(last_loss) : Json(nullptr);
  json["examples_per_second"] = rate;
  json["global_batch_size"] = global_batch.size();
  json["gradient_noise"] = nullptr;
  if (noise) {
    const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
    json["gradient_noise"] = {{"steps", noise->steps()},
                              {"gradient_norm", number(gradient_norm)},
                              {"noise_scale", number(noise->NoiseScale())},
                              {"statistical_efficiency", number(noise->Efficiency())}};
  }
  double eta = -1;
  if (rate > 0) {
    double left = train.epochs > 0 ? static_cast<double>(train.epochs * samples - samples_trained) : 1e300;
    if (train.max_commits > 0 && commit.value() > 0) {
      const double per_commit = static_cast<double>(samples_trained) / static_cast<double>(commit.value());
      left = std::min(left,
                      per_commit * static_cast<double>(train.max_commits - static_cast<std::int64_t>(commit.value())));
    }
    eta = std::max(0.0, left) / rate;
  }
  json["eta_seconds"] = eta >= 0 ? Json(eta) : Json(nullptr);
  json["last_checkpoint"] = durable ? Json(CheckpointName(durable->version)) : Json(nullptr);
  json["checkpoint_in_progress"] = checkpoint ? Json(CheckpointName(checkpoint->manifest.version)) : Json(nullptr);
  json["evaluators"] = evaluators.size();
  json["eval"] = nullptr;
  if (last_eval) {
    Json metrics = Json::object();
    for (const auto& [name, value] : last_eval->metrics) metrics[name] = value;
    json["eval"] = {{"checkpoint", CheckpointName(last_eval->version)}, {"metrics", metrics}};
  }
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
               {"clock", worker.clock},
               {"step_seconds", worker.step_seconds},
               {"busy_seconds", worker.busy_seconds},
               {"predicted_seconds", worker.predicted_seconds},
               {"waiting_share", worker.waiting_share},
               {"gradient_norm", worker.gradient_norm},
               {"state", worker.state},
               {"state_seconds", SecondsSince(worker.state_since, at)}};
    entry["lease_seconds_left"] = LeaseLeft(leases, incarnation, at);
    entry["batch"] = worker.bound ? TotalSize(undecided.At(*worker.bound).share.positions) : 0;
    json["workers"].push_back(std::move(entry));
  }
  json["joining"] = Json::array();
  for (const auto& [session, join] : waiting) json["joining"].push_back(join.name);
  return json.dump();
}

}  // namespace evenkeel
