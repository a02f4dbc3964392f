#include "replay/sources.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"

namespace evenkeel::replay {
namespace {

std::string ManifestPath(const std::string& model_dir, Version version) {
  return JoinPath(CheckpointFolder(model_dir, version), "manifest.json");
}

absl::Status AddCheckpoint(const ReplayOptions& options, const Storage& storage, Version version, Sources& sources) {
  const auto reader = OpenCheckpoint(sources, storage, options.model_dir, version);
  if (absl::IsNotFound(reader.status())) return absl::OkStatus();
  if (!reader.ok()) return reader.status();
  const Manifest& manifest = reader->manifest();
  if (!sources.experiments.contains(manifest.spec_hash)) {
    EK_ASSIGN_OR_RETURN(
        Experiment experiment,
        ParseExperiment(manifest.experiment_json, absl::StrCat("of checkpoint ", CheckpointName(version)), {}));
    sources.experiments.emplace(manifest.spec_hash, std::move(experiment));
  }
  if (sources.history.Holds(version)) {
    sources.checkpoints.emplace(version, manifest);
  } else {
    sources.notes.push_back(absl::StrCat("checkpoint ", CheckpointName(version), " is of a history that was rolled ",
                                         "back, or that the log does not hold; left out"));
  }
  return absl::OkStatus();
}

void AddExperiments(const ReplayOptions& options, Sources& sources) {
  for (const auto& [spec_hash, json] : sources.history.experiments) {
    auto experiment = ParseExperiment(json, absl::StrCat("of the commit log in ", options.model_dir), {});
    if (experiment.ok()) sources.experiments.emplace(spec_hash, *std::move(experiment));
    if (!experiment.ok()) sources.unreadable.emplace(spec_hash, experiment.status());
  }
}

// Left out where it is removed meanwhile.
absl::Status Keep(const Storage& storage, const std::string& model_dir, const Manifest& manifest, Sources& sources) {
  std::unique_ptr<Storage> memory = MakeMemoryStorage();
  const std::string folder = CheckpointFolder(model_dir, manifest.version);
  EK_RETURN_IF_ERROR(memory->MakeFolder(folder));
  std::vector<std::string> files = {"manifest.json"};
  for (const PartInfo& part : manifest.parts) files.push_back(part.file);
  for (const std::string& file : files) {
    const auto bytes = storage.Read(JoinPath(folder, file));
    if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
    if (!bytes.ok()) return bytes.status();
    EK_RETURN_IF_ERROR(memory->WriteAtomic(JoinPath(folder, file), AsBytes(*bytes)));
  }
  sources.kept = std::move(memory);
  return absl::OkStatus();
}

std::string Names(const Sources& sources) {
  return absl::StrJoin(sources.checkpoints, ", ",
                       [](std::string* out, const auto& entry) { absl::StrAppend(out, CheckpointName(entry.first)); });
}

}  // namespace

absl::StatusOr<CheckpointReader> OpenCheckpoint(const Sources& sources, const Storage& storage,
                                                const std::string& model_dir, Version version) {
  const std::string manifest = ManifestPath(model_dir, version);
  const bool kept = sources.kept && sources.kept->Exists(manifest);
  const Storage& from = kept ? *sources.kept : storage;
  auto reader = CheckpointReader::Open(from, model_dir, version);
  // Removal takes the manifest first.
  if (absl::IsDataLoss(reader.status()) && !from.Exists(manifest)) {
    return absl::NotFoundError(absl::StrCat(manifest, " was removed"));
  }
  return reader;
}

absl::StatusOr<Sources> ReadSources(const ReplayOptions& options, const Storage& storage) {
  Sources sources;
  // First the checkpoints: a job that runs logs commits before it writes their checkpoint.
  auto list = ListCheckpoints(storage, options.model_dir);
  if (!list.ok() && !absl::IsNotFound(list.status())) return list.status();
  if (list.ok() && !list->damaged.empty()) return absl::DataLossError(list->damaged.front());
  EK_ASSIGN_OR_RETURN(sources.history, ReadHistory(storage, options.model_dir));
  AddExperiments(options, sources);
  if (list.ok()) {
    for (const Version& version : list->versions) {
      EK_RETURN_IF_ERROR(AddCheckpoint(options, storage, version, sources));
    }
  }
  if (sources.checkpoints.empty()) {
    return absl::NotFoundError(absl::StrCat("[replay] ", options.model_dir,
                                            " holds no checkpoint of the history in its log: there is nothing to ",
                                            "compare with"));
  }
  if (sources.history.status.empty()) {
    EK_RETURN_IF_ERROR(Keep(storage, options.model_dir, sources.checkpoints.rbegin()->second, sources));
  }
  return sources;
}

absl::StatusOr<Version> FindStart(const ReplayOptions& options, const Sources& sources) {
  const History& history = sources.history;
  if (options.from.empty()) {
    if (history.base.commit == CommitNumber(0) || sources.checkpoints.contains(history.base)) return history.base;
    return absl::NotFoundError(absl::StrCat("[replay] the log begins after ", CheckpointName(history.base),
                                            ", whose checkpoint is not here; --from may name one of ", Names(sources)));
  }
  std::uint64_t commit = 0;
  const bool number = absl::SimpleAtoi(options.from, &commit);
  for (const auto& [version, manifest] : sources.checkpoints) {
    if (number ? version.commit.value() == commit : CheckpointName(version) == options.from) return version;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "[replay] --from ", options.from, " is no checkpoint of the surviving history; there are ", Names(sources)));
}

}  // namespace evenkeel::replay
