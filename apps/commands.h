// The subcommands of `evenkeel`.
#pragma once

#include <functional>
#include <string>

#include "CLI/CLI.hpp"

namespace evenkeel::apps {

// What the command line asks for; gives the exit code.
using Action = std::function<int()>;

// Each adds a subcommand, which sets `chosen` when it is the one.
void AddLaunchCommand(CLI::App& app, Action& chosen);
void AddCheckCommand(CLI::App& app, Action& chosen);
void AddExportCommand(CLI::App& app, Action& chosen);
void AddDrainCommand(CLI::App& app, Action& chosen);
void AddScaleCommand(CLI::App& app, Action& chosen);
void AddDataCommand(CLI::App& app, Action& chosen);
void AddAgentCommand(CLI::App& app, Action& chosen);
void AddStatusCommand(CLI::App& app, Action& chosen);
void AddBenchCommand(CLI::App& app, Action& chosen);
void AddSimulateCommand(CLI::App& app, Action& chosen);
void AddReplayCommand(CLI::App& app, Action& chosen);

// --max-restarts and --monitor-interval.
void AddSupervisorOptions(CLI::App& app, int& max_restarts, double& monitor_seconds);

// The folder of this program's file.
std::string ProgramFolder();

}  // namespace evenkeel::apps
