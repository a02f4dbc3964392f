#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "commands.h"
#include "evenkeel/core/status.h"

namespace evenkeel::apps {
namespace {

struct Options {
  std::string name;
  std::vector<std::string> arguments;
};

int Bench(const Options& options) {
  const std::filesystem::path folder = std::filesystem::path(ProgramFolder()).parent_path() / "benchmarks";
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file() && access(entry.path().c_str(), X_OK) == 0) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  if (options.name.empty()) {
    if (names.empty()) std::printf("no benchmarks in %s; build with EVENKEEL_BUILD_BENCHMARKS\n", folder.c_str());
    for (const std::string& name : names) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (std::find(names.begin(), names.end(), options.name) == names.end()) {
    std::fprintf(stderr, "evenkeel bench: there is no %s in %s\n", options.name.c_str(), folder.c_str());
    return static_cast<int>(ExitCode::kWrongInput);
  }
  std::string program = (folder / options.name).string();
  std::vector<std::string> arguments = options.arguments;
  std::vector<char*> pointers{program.data()};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  std::fprintf(stderr, "evenkeel bench: %s: %s\n", program.c_str(), std::strerror(errno));
  return static_cast<int>(ExitCode::kFailed);
}

}  // namespace

void AddBenchCommand(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Lists the benchmarks that were built, or runs one");
  command->add_option("name", options->name, "The benchmark to run (push-pull, rpc, ...); without it all are listed");
  command->add_option("arguments", options->arguments, "What to tell it, after -- (bench push-pull -- --help)");
  command->callback([&chosen, options] { chosen = [options] { return Bench(*options); }; });
}

}  // namespace evenkeel::apps
