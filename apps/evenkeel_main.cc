// evenkeel: the command line tool.
#include <filesystem>
#include <system_error>

#include "commands.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/log.h"
#include "options.h"

namespace evenkeel::apps {

std::string ProgramFolder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : program.parent_path().string();
}

}  // namespace evenkeel::apps

int main(int argc, char** argv) {
  using namespace evenkeel::apps;
  evenkeel::TuneAllocator();
  evenkeel::InitLog("evenkeel", evenkeel::LogLevel::kWarning);
  CLI::App app(
      "Evenkeel trains models with parameter servers on machines of unequal speed that may vanish at any moment.",
      "evenkeel");
  app.require_subcommand(1);
  app.footer(
      "evenkeel COMMAND --help explains a command. Exit codes: 0 done; 1 failed while running; 2 wrong input; "
      "3 refused; 4 a deadline passed; 130 interrupted.");
  Action chosen;
  AddLaunchCommand(app, chosen);
  AddAgentCommand(app, chosen);
  AddCheckCommand(app, chosen);
  AddExportCommand(app, chosen);
  AddDataCommand(app, chosen);
  AddStatusCommand(app, chosen);
  AddDrainCommand(app, chosen);
  AddScaleCommand(app, chosen);
  AddBenchCommand(app, chosen);
  AddSimulateCommand(app, chosen);
  AddReplayCommand(app, chosen);
  if (const auto code = ParseCommandLine(app, argc, argv)) return *code;
  return chosen();
}
