#include "evaluator/outputs.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kBestJsonBytesMax = 1 << 20;
constexpr std::uint64_t kTailBytes = 4096;  // more than a row

std::string BestFolder(const std::string& model_dir) { return JoinPath(model_dir, "best"); }
std::string BestModelPath(const std::string& model_dir) { return JoinPath(BestFolder(model_dir), "model.safetensors"); }
std::string BestJsonPath(const std::string& model_dir) { return JoinPath(BestFolder(model_dir), "best.json"); }

std::string RowStart(Version version) {
  return absl::StrCat(version.commit.value(), ",", version.generation.value(), ",");
}

// Shortest text that reads back as the same number.
std::string Text(double value) {
  std::string text = absl::StrFormat("%.9g", value);
  double back = 0;
  if (absl::SimpleAtod(text, &back) && back == value) return text;
  return absl::StrFormat("%.17g", value);
}

absl::StatusOr<bool> EndsWithRowOf(const Storage& storage, const std::string& path, Version version) {
  if (!storage.Exists(path)) return false;
  EK_ASSIGN_OR_RETURN(const std::uint64_t size, storage.Size(path));
  std::string tail(static_cast<std::size_t>(std::min(size, kTailBytes)), '\0');
  EK_RETURN_IF_ERROR(storage.ReadAt(path, size - tail.size(), std::as_writable_bytes(std::span<char>(tail))));
  if (tail.empty() || tail.back() != '\n') return false;  // cut short; the writer takes such a row away
  tail.pop_back();
  return absl::StartsWith(tail.substr(tail.rfind('\n') + 1), RowStart(version));
}

bool SameMetrics(const MetricValues& values, const std::vector<std::string>& names) {
  if (values.size() != names.size()) return false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (values[i].first != names[i]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<ScoreOutputs> ScoreOutputs::Open(Storage& storage, const std::string& model_dir, const Clock& clock,
                                                const std::vector<std::string>& metrics,
                                                const std::optional<Score>& last) {
  ScoreOutputs outputs;
  outputs.storage_ = &storage;
  outputs.clock_ = &clock;
  outputs.event_folder_ = JoinPath(JoinPath(model_dir, "tensorboard"), "eval");
  const std::string path = JoinPath(model_dir, "eval.csv");
  std::vector<std::string> header = {"commit", "generation", "epoch", "samples_trained", "seconds"};
  header.insert(header.end(), metrics.begin(), metrics.end());
  bool missing = false;
  if (last && SameMetrics(last->metrics, metrics)) {
    EK_ASSIGN_OR_RETURN(const bool there, EndsWithRowOf(storage, path, last->version));
    missing = !there;
  }
  EK_ASSIGN_OR_RETURN(outputs.csv_, CsvWriter::Open(storage, path, header, std::nullopt));
  if (missing) EK_RETURN_IF_ERROR(outputs.Write(*last));
  return outputs;
}

absl::Status ScoreOutputs::Write(const Score& score) {
  std::vector<std::string> row = {absl::StrCat(score.version.commit.value()),
                                  absl::StrCat(score.version.generation.value()), Text(score.epochs),
                                  absl::StrCat(score.samples_trained), absl::StrFormat("%.3f", score.seconds)};
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : score.metrics) {
    row.push_back(Text(value));
    scalars.push_back({name, value});
  }
  EK_RETURN_IF_ERROR(csv_->Write(row));
  EK_RETURN_IF_ERROR(csv_->Flush());
  if (!events_) {
    EK_ASSIGN_OR_RETURN(events_, EventFileWriter::Open(*storage_, event_folder_, *clock_, "eval"));
  }
  EK_RETURN_IF_ERROR(events_->Write(static_cast<std::int64_t>(score.version.commit.value()), scalars));
  return events_->Flush();
}

absl::Status WriteBest(Storage& storage, const std::string& model_dir, const Manifest& manifest, const BestScore& best,
                       const MetricValues& metrics, const std::vector<NamedTensor>& tensors) {
  EK_RETURN_IF_ERROR(storage.MakeFolder(BestFolder(model_dir)));
  EK_RETURN_IF_ERROR(WriteSafetensors(storage, BestModelPath(model_dir), tensors,
                                      {{"producer", "evenkeel"},
                                       {"job_id", manifest.job_id},
                                       {"checkpoint", CheckpointName(best.version)},
                                       {"samples_trained", absl::StrCat(manifest.samples_trained)},
                                       {"data_statistics", manifest.data_statistics_json},
                                       {"metric", best.metric},
                                       {"value", Text(best.value)}}));
  Json json = {{"checkpoint", CheckpointName(best.version)},
               {"metric", best.metric},
               {"value", best.value},
               {"epoch", manifest.epochs},
               {"samples_trained", manifest.samples_trained},
               {"job_id", manifest.job_id}};
  for (const auto& [name, value] : metrics) json["metrics"][name] = value;
  return storage.WriteAtomic(BestJsonPath(model_dir), AsBytes(absl::StrCat(json.dump(2), "\n")));
}

absl::StatusOr<std::optional<BestScore>> ReadBest(const Storage& storage, const std::string& model_dir) {
  const std::string path = BestJsonPath(model_dir);
  if (!storage.Exists(BestModelPath(model_dir))) return std::nullopt;
  absl::StatusOr<std::string> text = storage.Read(path, kBestJsonBytesMax);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  try {
    const Json json = Json::parse(*text);
    BestScore best;
    EK_ASSIGN_OR_RETURN(best.version, ParseCheckpointName(json.at("checkpoint").get<std::string>()));
    json.at("metric").get_to(best.metric);
    json.at("value").get_to(best.value);
    json.at("job_id").get_to(best.job_id);
    return best;
  } catch (const std::exception& error) {
    return absl::DataLossError(
        absl::StrCat("[best export] ", path, ": ", error.what(), "; remove the folder to choose the best anew"));
  }
}

}  // namespace evenkeel
