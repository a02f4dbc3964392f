#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "commands.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::string model_dir, checkpoint = "latest", out;
};

absl::StatusOr<Version> FindVersion(const Storage& storage, const Options& options) {
  EK_ASSIGN_OR_RETURN(const CheckpointList list, ListCheckpoints(storage, options.model_dir));
  if (list.versions.empty()) {
    return absl::NotFoundError(absl::StrCat(options.model_dir, " holds no complete checkpoint",
                                            list.damaged.empty() ? "" : "; ", absl::StrJoin(list.damaged, "; ")));
  }
  if (options.checkpoint == "latest") return list.versions.back();
  std::uint64_t commit = 0;
  const bool number = absl::SimpleAtoi(options.checkpoint, &commit);
  for (auto version = list.versions.rbegin(); version != list.versions.rend(); ++version) {
    if (number ? version->commit.value() == commit : CheckpointName(*version) == options.checkpoint) return *version;
  }
  std::vector<std::string> names;
  for (const Version& version : list.versions) names.push_back(CheckpointName(version));
  return absl::NotFoundError(absl::StrCat("--checkpoint ", options.checkpoint, " is not in ", options.model_dir,
                                          "; there are ", absl::StrJoin(names, ", "), ", and latest and best"));
}

absl::Status Export(const Options& options) {
  Storage& storage = Storage::Posix();
  if (options.checkpoint != "best") {
    EK_ASSIGN_OR_RETURN(const Version version, FindVersion(storage, options));
    EK_RETURN_IF_ERROR(ExportCheckpoint(storage, options.model_dir, version, options.out));
    std::printf("%s: checkpoint %s\n", options.out.c_str(), CheckpointName(version).c_str());
    return absl::OkStatus();
  }
  // The evaluator exported it when it was scored; its checkpoint may be gone by now.
  const std::string best = JoinPath(JoinPath(options.model_dir, "best"), "model.safetensors");
  if (!storage.Exists(best)) {
    return absl::NotFoundError(
        absl::StrCat("there is no ", best, "; an evaluator makes it when it scores checkpoints"));
  }
  EK_ASSIGN_OR_RETURN(const std::string bytes, storage.Read(best));
  EK_RETURN_IF_ERROR(storage.WriteAtomic(options.out, AsBytes(bytes)));
  std::printf("%s: the best checkpoint\n", options.out.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddExportCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("export", "Writes a checkpoint's tensors as one safetensors file");
  command->add_option("--model-dir", options->model_dir, "The job's folder")->required()->type_name("DIR");
  command->add_option("--checkpoint", options->checkpoint, "A commit's number, a name as g1-c42, latest or best")
      ->capture_default_str();
  command->add_option("--out", options->out, "The file to write")->required()->type_name("FILE");
  command->callback([&chosen, options] {
    chosen = [options] {
      const absl::Status status = Export(*options);
      if (!status.ok()) std::fprintf(stderr, "evenkeel export: %s\n", std::string(status.message()).c_str());
      return static_cast<int>(ExitCodeFor(status));
    };
  });
}

}  // namespace evenkeel::apps
