#include "evaluator/score_state.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr std::uint64_t kFileBytesMax = 16 << 20;

bool Better(double value, double than, bool maximize) { return maximize ? value > than : value < than; }

std::optional<double> Find(const MetricValues& metrics, const std::string& name) {
  for (const auto& [metric, value] : metrics) {
    if (metric == name && std::isfinite(value)) return value;
  }
  return std::nullopt;
}

// JSON has no NaN; null stands for it.
double NumberFrom(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

// Throws like nlohmann's own readers; Load catches.
Version VersionFrom(const Json& json) {
  absl::StatusOr<Version> version = ParseCheckpointName(json.get<std::string>());
  if (!version.ok()) throw std::invalid_argument(std::string(version.status().message()));
  return *version;
}

Score ScoreFrom(const Json& json) {
  Score score;
  score.version = VersionFrom(json.at("checkpoint"));
  score.epochs = NumberFrom(json.at("epochs"));
  score.samples_trained = json.at("samples_trained").get<std::int64_t>();
  score.seconds = NumberFrom(json.at("seconds"));
  score.final = json.at("final").get<bool>();
  for (const Json& metric : json.at("metrics")) {
    score.metrics.emplace_back(metric.at(0).get<std::string>(), NumberFrom(metric.at(1)));
  }
  return score;
}

Json ToJson(const Score& score) {
  Json metrics = Json::array();
  for (const auto& [name, value] : score.metrics) metrics.push_back({name, value});
  return {{"checkpoint", CheckpointName(score.version)},
          {"epochs", score.epochs},
          {"samples_trained", score.samples_trained},
          {"seconds", score.seconds},
          {"final", score.final},
          {"metrics", std::move(metrics)}};
}

}  // namespace

absl::StatusOr<ScoreState> ScoreState::Load(const Storage& storage, const std::string& path) {
  ScoreState state;
  absl::StatusOr<std::string> text = storage.Read(path, kFileBytesMax);
  if (absl::IsNotFound(text.status())) return state;
  if (!text.ok()) return text.status();
  try {
    const Json json = Json::parse(*text);
    if (json.at("format").get<int>() != kFormat) {
      return absl::DataLossError(absl::StrCat("[eval state] ", path, " has format ", json.at("format").dump(),
                                              "; this program reads ", kFormat));
    }
    state.job_id_ = json.at("job_id").get<std::string>();
    for (const Json& version : json.at("scored")) state.scored_.insert(VersionFrom(version));
    if (json.contains("forgotten")) state.forgotten_ = VersionFrom(json.at("forgotten"));
    if (json.contains("last")) state.last_ = ScoreFrom(json.at("last"));
    if (json.contains("best")) {
      const Json& best = json.at("best");
      state.best_ = BestScore{VersionFrom(best.at("checkpoint")), best.at("metric").get<std::string>(),
                              best.at("value").get<double>(), state.job_id_};
    }
    if (json.contains("early_stopping")) {
      const Json& stopping = json.at("early_stopping");
      state.stopping_.metric = stopping.at("metric").get<std::string>();
      state.stopping_.without = stopping.at("without_improvement").get<std::int64_t>();
      if (stopping.contains("reference")) {
        state.stopping_.reference = stopping.at("reference").get<double>();
        state.stopping_.version = VersionFrom(stopping.at("checkpoint"));
      }
    }
  } catch (const std::exception& error) {
    return absl::DataLossError(
        absl::StrCat("[eval state] ", path, ": ", error.what(), "; remove it to score the checkpoints anew"));
  }
  return state;
}

absl::Status ScoreState::Save(Storage& storage, const std::string& path) const {
  Json json;
  json["format"] = kFormat;
  json["job_id"] = job_id_;
  json["scored"] = Json::array();
  for (const Version& version : scored_) json["scored"].push_back(CheckpointName(version));
  if (forgotten_) json["forgotten"] = CheckpointName(*forgotten_);
  if (last_) json["last"] = ToJson(*last_);
  if (best_) {
    json["best"] = {{"checkpoint", CheckpointName(best_->version)}, {"metric", best_->metric}, {"value", best_->value}};
  }
  if (!stopping_.metric.empty()) {
    Json& stopping = json["early_stopping"];
    stopping = {{"metric", stopping_.metric}, {"without_improvement", stopping_.without}};
    if (stopping_.reference) {
      stopping["reference"] = *stopping_.reference;
      stopping["checkpoint"] = CheckpointName(stopping_.version);
    }
  }
  return storage.WriteAtomic(path, AsBytes(absl::StrCat(json.dump(2), "\n")));
}

void ScoreState::Configure(const EvalConfig& config) {
  config_ = config;
  if (best_ && best_->metric != config_.best_metric) {
    LogWarning(absl::StrCat("the best so far was measured by ", best_->metric, "; now ", config_.best_metric,
                            " decides, beginning anew"));
    best_.reset();
  }
  const std::string metric = config_.early_stopping ? config_.early_stopping->metric : "";
  if (stopping_.metric != metric) stopping_ = Stopping{metric, {}, {}, 0};
}

bool ScoreState::AdoptJob(const std::string& job_id) {
  if (job_id == job_id_) return false;
  const bool other = !job_id_.empty();
  if (other) {
    const EvalConfig config = config_;
    *this = ScoreState();
    Configure(config);
  }
  job_id_ = job_id;
  return other;
}

void ScoreState::AdoptBest(const std::optional<BestScore>& on_disk) {
  if (!on_disk) {
    best_.reset();
    return;
  }
  if (on_disk->metric != config_.best_metric) return;
  if (job_id_.empty()) job_id_ = on_disk->job_id;
  if (on_disk->job_id != job_id_) return;
  if (!best_ || Better(on_disk->value, best_->value, config_.best_maximize)) best_ = on_disk;
}

bool ScoreState::Scored(Version version) const {
  return (forgotten_ && version <= *forgotten_) || scored_.contains(version);
}

void ScoreState::CountForStopping(const Score& score) {
  if (!config_.early_stopping) return;
  const EvalConfig::EarlyStopping& rule = *config_.early_stopping;
  const std::optional<double> value = Find(score.metrics, rule.metric);
  bool improved = false;
  if (value && !stopping_.reference) improved = true;
  if (value && stopping_.reference) {
    improved = (rule.maximize ? *value - *stopping_.reference : *stopping_.reference - *value) > rule.min_delta;
  }
  if (!improved) {
    ++stopping_.without;
    return;
  }
  stopping_.reference = value;
  stopping_.version = score.version;
  stopping_.without = 0;
}

bool ScoreState::Record(const Score& score) {
  scored_.insert(score.version);
  last_ = score;
  CountForStopping(score);
  bool best = false;
  if (const std::optional<double> value = Find(score.metrics, config_.best_metric)) {
    best = !best_ || Better(*value, best_->value, config_.best_maximize);
    if (best) best_ = BestScore{score.version, config_.best_metric, *value, job_id_};
  }
  for (auto oldest = scored_.begin(); scored_.size() > kScoredMax;) {
    if (!forgotten_ || *forgotten_ < *oldest) forgotten_ = *oldest;
    oldest = scored_.erase(oldest);
  }
  return best;
}

std::optional<std::string> ScoreState::StopReason() const {
  if (!config_.early_stopping || stopping_.without < config_.early_stopping->patience) return std::nullopt;
  const EvalConfig::EarlyStopping& rule = *config_.early_stopping;
  std::string reason = absl::StrFormat("%s has not improved by more than %g in %d scores", rule.metric, rule.min_delta,
                                       stopping_.without);
  if (stopping_.reference) {
    absl::StrAppendFormat(&reason, " since %g at %s", *stopping_.reference, CheckpointName(stopping_.version));
  }
  return reason;
}

}  // namespace evenkeel
