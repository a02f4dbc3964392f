#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "checkpoint/manifest.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

std::string CheckpointsFolder(const std::string& model_dir) { return JoinPath(model_dir, "checkpoints"); }

// The number at the front of `text`, which is moved behind it.
bool TakeNumber(std::string_view& text, std::uint64_t& number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string CheckpointName(Version version) {
  return absl::StrCat("g", version.generation.value(), "-c", version.commit.value());
}

std::string CheckpointFolder(const std::string& model_dir, Version version) {
  return JoinPath(CheckpointsFolder(model_dir), CheckpointName(version));
}

absl::StatusOr<Version> ParseCheckpointName(std::string_view name) {
  std::uint64_t generation = 0;
  std::uint64_t commit = 0;
  std::string_view rest = name;
  bool good = rest.starts_with("g");
  if (good) rest.remove_prefix(1);
  good = good && TakeNumber(rest, generation) && rest.starts_with("-c");
  if (good) rest.remove_prefix(2);
  good = good && TakeNumber(rest, commit) && rest.empty();
  const Version version{Generation(generation), CommitNumber(commit)};
  // One version has one name: no leading zeros.
  if (!good || CheckpointName(version) != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("[parse checkpoint] \"", std::string(name), "\" is no name like g1-c42"));
  }
  return version;
}

absl::Status WriteManifest(Storage& storage, const std::string& model_dir, const Manifest& manifest) {
  EK_ASSIGN_OR_RETURN(std::string text, SerializeManifest(manifest));
  const std::string folder = CheckpointFolder(model_dir, manifest.version);
  // The names of parts and folder are durable before the file that makes them count.
  EK_RETURN_IF_ERROR(storage.MakeFolder(folder));
  EK_RETURN_IF_ERROR(storage.SyncFolder(folder));
  EK_RETURN_IF_ERROR(storage.SyncFolder(CheckpointsFolder(model_dir)));
  EK_RETURN_IF_ERROR(storage.SyncFolder(model_dir.empty() ? "." : model_dir));
  return storage.WriteAtomic(ManifestPath(model_dir, manifest.version), AsBytes(text));
}

absl::StatusOr<Manifest> ReadManifest(const Storage& storage, const std::string& model_dir, Version version) {
  const std::string path = ManifestPath(model_dir, version);
  EK_ASSIGN_OR_RETURN(std::string text, storage.Read(path, kMaxManifestBytes));
  EK_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text, path));
  if (manifest.version != version) {
    return absl::DataLossError(
        absl::StrCat("[read manifest] ", path, ": it describes ", CheckpointName(manifest.version)));
  }
  return manifest;
}

absl::StatusOr<CheckpointList> ListCheckpoints(const Storage& storage, const std::string& model_dir) {
  CheckpointList list;
  absl::StatusOr<std::vector<std::string>> names = storage.List(CheckpointsFolder(model_dir));
  if (absl::IsNotFound(names.status())) return list;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    absl::StatusOr<Version> version = ParseCheckpointName(name);
    if (!version.ok()) continue;
    absl::StatusOr<Manifest> manifest = ReadManifest(storage, model_dir, *version);
    if (manifest.ok()) {
      list.versions.push_back(*version);
    } else if (absl::IsDataLoss(manifest.status()) || absl::IsInvalidArgument(manifest.status()) ||
               absl::IsResourceExhausted(manifest.status())) {
      list.damaged.emplace_back(manifest.status().message());
    } else if (!absl::IsNotFound(manifest.status())) {  // not yet, or no longer, complete
      return manifest.status();
    }
  }
  std::sort(list.versions.begin(), list.versions.end());
  return list;
}

absl::Status RemoveCheckpoint(Storage& storage, const std::string& model_dir, Version version) {
  const std::string folder = CheckpointFolder(model_dir, version);
  // Without its manifest it does not count, however far the removal gets.
  absl::Status removed = storage.Remove(ManifestPath(model_dir, version));
  if (removed.ok()) {
    EK_RETURN_IF_ERROR(storage.SyncFolder(folder));
  } else if (!absl::IsNotFound(removed)) {
    return removed;
  }
  return storage.RemoveFolder(folder);
}

std::vector<Version> CheckpointsToRemove(std::span<const Version> ascending, std::int64_t keep_max,
                                         std::int64_t keep_every, std::span<const Version> pinned) {
  std::vector<Version> remove;
  std::int64_t kept_newest = 0;
  for (std::size_t i = ascending.size(); i-- > 0;) {
    const Version& version = ascending[i];
    const bool newest = i + 1 == ascending.size();
    const std::uint64_t commit = version.commit.value();
    bool keep = newest;
    if (commit != 0 || newest) {
      keep = keep || kept_newest < keep_max;
      ++kept_newest;
    }
    if (commit != 0 && keep_every > 0 && commit % static_cast<std::uint64_t>(keep_every) == 0) keep = true;
    if (std::find(pinned.begin(), pinned.end(), version) != pinned.end()) keep = true;
    if (!keep) remove.push_back(version);
  }
  std::reverse(remove.begin(), remove.end());
  return remove;
}

}  // namespace evenkeel
