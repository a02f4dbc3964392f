#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "commands.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/status.h"
#include "evenkeel/data/dataset.h"
#include "options.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::string data;
  std::vector<std::string> files;
};

// The experiments that come with the programs: of this folder, of an installation, of the source tree built in place.
std::vector<std::string> OwnExperiments() {
  namespace fs = std::filesystem;
  const fs::path program = ProgramFolder();
  const fs::path candidates[] = {fs::path("configs") / "experiments",
                                 program.parent_path() / "share" / "evenkeel" / "configs" / "experiments",
                                 program.parent_path().parent_path().parent_path() / "configs" / "experiments"};
  for (const fs::path& folder : candidates) {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    if (!files.empty()) return files;
  }
  return {};
}

absl::Status Data(const Options& options) {
  const std::vector<std::string> files = options.files.empty() ? OwnExperiments() : options.files;
  if (files.empty()) return absl::NotFoundError("no configs/experiments here; name the experiment files");
  struct Set {
    KnownSet set;
    std::vector<std::string> users;
  };
  std::map<std::string, Set> sets;
  for (const std::string& file : files) {
    EK_ASSIGN_OR_RETURN(const Experiment experiment, LoadExperiment(file, {}));
    for (KnownSet& set : DescribeSets(experiment.input, options.data)) {
      Set& known = sets[set.name];
      known.users.push_back(experiment.name);
      for (std::string& name : set.files) {
        if (std::find(known.set.files.begin(), known.set.files.end(), name) == known.set.files.end()) {
          known.set.files.push_back(name);
        }
      }
      for (std::string& name : set.missing) {
        if (std::find(known.set.missing.begin(), known.set.missing.end(), name) == known.set.missing.end()) {
          known.set.missing.push_back(name);
        }
      }
      known.set.origin = set.origin;
    }
  }
  for (const auto& [name, known] : sets) {
    const bool here = known.set.missing.empty();
    std::printf("%-8s %s, for %s\n", here ? "present" : "missing", name.c_str(),
                absl::StrJoin(known.users, ", ").c_str());
    for (const std::string& file : here ? known.set.files : known.set.missing)
      std::printf("           %s\n", file.c_str());
    if (!here) std::printf("         to be had: %s\n", known.set.origin.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddDataCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("data", "Lists the data sets that experiments use, and which are here");
  AddDataOption(*command, options->data);
  command->add_option("experiments", options->files, "Experiment files; without them those of configs/experiments");
  command->callback([&chosen, options] {
    chosen = [options] {
      const absl::Status status = Data(*options);
      if (!status.ok()) std::fprintf(stderr, "evenkeel data: %s\n", std::string(status.message()).c_str());
      return static_cast<int>(ExitCodeFor(status));
    };
  });
}

}  // namespace evenkeel::apps
