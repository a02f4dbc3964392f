#include "evaluator/score_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

std::string ManifestPath(const std::string& model_dir, Version version) {
  return JoinPath(CheckpointFolder(model_dir, version), "manifest.json");
}

}  // namespace

ScoreRunner::ScoreRunner(const EvaluatorOptions& options, Storage& storage, const Clock& clock, Cancelled cancelled)
    : options_(options),
      storage_(storage),
      clock_(clock),
      cancelled_(std::move(cancelled)),
      state_path_(JoinPath(options.model_dir, "eval_state.json")) {}

absl::Status ScoreRunner::Start() {
  if (options_.experiment) EK_RETURN_IF_ERROR(UseExperiment(*options_.experiment));
  return absl::OkStatus();
}

absl::Status ScoreRunner::UseExperiment(Experiment experiment) {
  if (!experiment.input.eval && !(experiment.input.eval_fraction > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("[evaluator] experiment ", experiment.name,
                                                   " has no evaluation data; give input.eval or input.eval_fraction"));
  }
  EK_ASSIGN_OR_RETURN(state_, ScoreState::Load(storage_, state_path_));
  state_.Configure(experiment.eval);
  EK_ASSIGN_OR_RETURN(const std::optional<BestScore> best, ReadBest(storage_, options_.model_dir));
  state_.AdoptBest(best);
  scorer_.emplace(experiment, options_.data_folder, options_.threads);
  experiment_ = std::move(experiment);
  return absl::OkStatus();
}

void ScoreRunner::Announce(Version version, bool final) {
  if (final) announced_final_ = version;
  pending_.insert(version);
}

// --- what there is --------------------------------------------------------------------------------------------------

absl::Status ScoreRunner::Look() {
  const std::string parent = JoinPath(options_.model_dir, "checkpoints");
  absl::StatusOr<std::vector<std::string>> names = storage_.List(parent);
  if (!names.ok() && !absl::IsNotFound(names.status())) return names.status();
  folders_ = {options_.model_dir, parent};
  on_disk_.clear();
  if (names.ok()) {
    for (const std::string& name : *names) {
      const absl::StatusOr<Version> version = ParseCheckpointName(name);
      if (!version.ok()) continue;  // a stranger's file
      if (storage_.Exists(ManifestPath(options_.model_dir, *version))) {
        on_disk_.push_back(*version);
      } else {
        folders_.push_back(JoinPath(parent, name));  // being written; its manifest comes last
      }
    }
  }
  std::sort(on_disk_.begin(), on_disk_.end());
  std::erase_if(damaged_, [this](const auto& entry) {
    return !std::binary_search(on_disk_.begin(), on_disk_.end(), entry.first);
  });
  EK_RETURN_IF_ERROR(FindNewest());
  SettlePending();
  return absl::OkStatus();
}

absl::Status ScoreRunner::FindNewest() {
  const std::optional<Newest> before = std::exchange(newest_, std::nullopt);
  for (auto version = on_disk_.rbegin(); version != on_disk_.rend(); ++version) {
    if (before && before->final && before->version == *version) {
      newest_ = before;
      return absl::OkStatus();
    }
    const absl::StatusOr<Manifest> manifest = ReadManifest(storage_, options_.model_dir, *version);
    if (absl::IsNotFound(manifest.status())) continue;  // just removed
    if (!manifest.ok()) {
      MarkDamaged(*version, manifest.status());
      continue;
    }
    newest_ = Newest{*version, manifest->final};
    if (!experiment_) {
      absl::StatusOr<Experiment> experiment =
          ParseExperiment(manifest->experiment_json, absl::StrCat("of checkpoint ", CheckpointName(*version)), {});
      if (!experiment.ok()) return experiment.status();
      EK_RETURN_IF_ERROR(UseExperiment(*std::move(experiment)));
    }
    if (state_.AdoptJob(manifest->job_id)) {
      LogWarning(absl::StrCat("what was scored in ", options_.model_dir, " was another job's; beginning anew"));
    }
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

void ScoreRunner::SettlePending() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const bool settled = state_.Scored(*it) || std::binary_search(on_disk_.begin(), on_disk_.end(), *it);
    const bool passed_by = !on_disk_.empty() && *it < on_disk_.back();
    if (!settled && passed_by) {
      LogWarning(absl::StrCat("checkpoint ", CheckpointName(*it), " was removed before it could be scored; skipped"));
    }
    it = settled || passed_by ? pending_.erase(it) : std::next(it);
  }
}

void ScoreRunner::MarkDamaged(Version version, const absl::Status& status) {
  if (!damaged_.emplace(version, status).second) return;
  LogError(
      absl::StrCat("checkpoint ", CheckpointName(version), " cannot be scored and is skipped: ", status.message()));
}

absl::Status ScoreRunner::DamageOf(Version version) const {
  const auto found = damaged_.find(version);
  return found == damaged_.end() ? absl::OkStatus() : found->second;
}

// --- what is due ----------------------------------------------------------------------------------------------------

bool ScoreRunner::IsFinal(Version version) const {
  return announced_final_ == version || (newest_ && newest_->final && newest_->version == version);
}

bool ScoreRunner::EnoughCommits(Version version) const {
  const std::int64_t every = experiment_->eval.every_commits;
  if (every <= 0 || !state_.last()) return true;
  const Version last = state_.last()->version;
  if (version < last) return false;
  if (version.commit < last.commit) return true;  // the job was rolled back below it
  return version.commit.value() - last.commit.value() >= static_cast<std::uint64_t>(every);
}

std::optional<Version> ScoreRunner::NextDue(bool only_final) const {
  if (!experiment_) return std::nullopt;
  for (const Version& version : on_disk_) {
    if (state_.Scored(version) || damaged_.contains(version)) continue;
    if (IsFinal(version)) return version;
    if (only_final || version.commit == CommitNumber{}) continue;
    if (experiment_->eval.newest_only && version != on_disk_.back()) continue;
    if (EnoughCommits(version)) return version;
  }
  return std::nullopt;
}

// --- scoring --------------------------------------------------------------------------------------------------------

ScoreRunner::Result ScoreRunner::Skip(Version version, const absl::Status& status) {
  // Removal takes the manifest first.
  if (!storage_.Exists(ManifestPath(options_.model_dir, version))) {
    LogWarning(absl::StrCat("checkpoint ", CheckpointName(version), " was removed before it could be scored; skipped"));
  } else {
    MarkDamaged(version, status);
  }
  return Result::kSkipped;
}

absl::StatusOr<ScoreRunner::Result> ScoreRunner::ScoreOne(Version version) {
  const TimePoint start = clock_.Now();
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(storage_, options_.model_dir, version);
  if (!reader.ok()) return Skip(version, reader.status());
  const Manifest& manifest = reader->manifest();
  EK_RETURN_IF_ERROR(scorer_->Prepare(manifest));
  if (const absl::Status status = scorer_->Load(*reader); !status.ok()) return Skip(version, status);

  Score score;
  score.version = version;
  score.epochs = manifest.epochs;
  score.samples_trained = manifest.samples_trained;
  score.final = manifest.final || announced_final_ == version;
  absl::StatusOr<MetricValues> values = scorer_->Evaluate([&] { return cancelled_(version, score.final); });
  if (absl::IsCancelled(values.status())) return Result::kCancelled;
  if (!values.ok()) return Annotate(values.status(), absl::StrCat("checkpoint ", CheckpointName(version)));
  score.metrics = *std::move(values);
  score.seconds = ToSeconds(clock_.Now() - start);
  EK_RETURN_IF_ERROR(Keep(score, manifest));
  return Result::kScored;
}

absl::Status ScoreRunner::Keep(const Score& score, const Manifest& manifest) {
  if (!outputs_) {
    std::vector<std::string> names;
    for (const auto& [name, value] : score.metrics) names.push_back(name);
    EK_ASSIGN_OR_RETURN(outputs_, ScoreOutputs::Open(storage_, options_.model_dir, clock_, names, state_.last()));
  }
  const bool stopped_before = state_.StopReason().has_value();
  const bool best = state_.Record(score);
  if (best) {
    EK_RETURN_IF_ERROR(
        WriteBest(storage_, options_.model_dir, manifest, *state_.best(), score.metrics, scorer_->tensors()));
  }
  EK_RETURN_IF_ERROR(state_.Save(storage_, state_path_));
  EK_RETURN_IF_ERROR(outputs_->Write(score));

  std::string line = absl::StrFormat("scored %s (epoch %.2f", CheckpointName(score.version), score.epochs);
  absl::StrAppend(&line, score.final ? ", final):" : "):");
  for (const auto& [name, value] : score.metrics) absl::StrAppendFormat(&line, " %s %.6g", name, value);
  absl::StrAppendFormat(&line, "%s (%.2f s)", best ? ", the best so far" : "", score.seconds);
  LogInfo(line);
  const std::optional<std::string> stop = state_.StopReason();
  if (stop && !stopped_before) LogInfo(absl::StrCat("early stopping: ", *stop));
  return absl::OkStatus();
}

EvalReport ScoreRunner::Report() const {
  const Score& score = *state_.last();
  EvalReport report;
  report.version = score.version;
  report.metrics = score.metrics;
  report.final_score = announced_final_ == score.version;
  if (const std::optional<std::string> stop = state_.StopReason()) {
    report.stop = true;
    report.reason = *stop;
  }
  if (state_.best()) {
    report.best_version = state_.best()->version;
    report.best_metric = state_.best()->metric;
    report.best_value = state_.best()->value;
  }
  return report;
}

}  // namespace evenkeel
