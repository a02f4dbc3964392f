#include <cmath>

#include "evenkeel/core/digest.h"
#include "evenkeel/metrics/sinks.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinity.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

std::string ToJson(const Summary& summary) {
  Json json;
  json["status"] = summary.status;
  json["reason"] = summary.reason;
  json["commits"] = summary.commits;
  json["epochs"] = summary.epochs;
  json["samples_trained"] = summary.samples_trained;
  json["samples_per_epoch"] = summary.samples_per_epoch;
  json["dropped_updates"] = summary.dropped_updates;
  json["samples_rolled_back"] = summary.samples_rolled_back;
  json["wall_seconds"] = Number(summary.wall_seconds);
  json["examples_per_second"] = Number(summary.examples_per_second);
  json["train_loss"] = summary.train_loss.has_value() ? Number(*summary.train_loss) : Json(nullptr);
  json["eval"] = Json::object();
  for (const auto& [metric, value] : summary.eval) json["eval"][metric] = Number(value);
  json["best"] = nullptr;
  if (summary.best.has_value()) {
    json["best"] = Json{{"checkpoint", summary.best->checkpoint},
                        {"metric", summary.best->metric},
                        {"value", Number(summary.best->value)}};
  }
  json["workers"] = Json::array();
  for (const WorkerSummary& worker : summary.workers) {
    json["workers"].push_back(Json{{"id", worker.id},
                                   {"commits", worker.commits},
                                   {"samples", worker.samples},
                                   {"mean_batch", Number(worker.mean_batch)},
                                   {"mean_step_seconds", Number(worker.mean_step_seconds)}});
  }
  json["parameters_sha256"] = summary.parameters_sha256;
  // A reason may quote anything: what is not UTF-8 is replaced, never thrown at.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status WriteSummary(Storage& storage, const std::string& model_dir, const Summary& summary) {
  return storage.WriteAtomic(JoinPath(model_dir, "summary.json"), AsBytes(ToJson(summary)));
}

}  // namespace evenkeel
