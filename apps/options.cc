#include "options.h"

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "evenkeel/core/status.h"

namespace evenkeel::apps {
namespace {

constexpr int kMaxThreads = 256;

// An empty variable of a shell, mostly; what it stands for must not be taken for a default.
void RefuseEmptyOptions(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.empty()) {
        throw CLI::ValidationError(option->get_name(), absl::StrCat("is empty; give ", option->get_type_name()));
      }
    }
  }
  for (const CLI::App* command : app.get_subcommands()) RefuseEmptyOptions(*command);
}

}  // namespace

CLI::Option* AddExperimentOptions(CLI::App& app, std::string& experiment, std::vector<std::string>& overrides) {
  CLI::Option* option = app.add_option("--experiment", experiment, "The experiment file (JSON)")->type_name("FILE");
  app.add_option("--set", overrides,
                 "Overrides a field of the experiment, as train.sync.mode=asp; may be given several times")
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
  return option;
}

void AddClusterOptions(CLI::App& app, RoleOptions& options) {
  app.add_option("--cluster", options.cluster,
                 "The cluster file; without it the environment variable TF_CONFIG is read")
      ->type_name("FILE");
  app.add_option("--task", options.task, "Which task of the cluster this process is, over the file's task")
      ->type_name("TYPE:INDEX");
}

void AddDataOption(CLI::App& app, std::string& data) {
  app.add_option("--data", data, "The data folder, for ${EVENKEEL_DATA} in the experiment")
      ->type_name("DIR")
      ->envname("EVENKEEL_DATA");
}

void AddDataPathOption(CLI::App& app, std::string& data_paths) {
  app.add_option(
         "--data-path", data_paths,
         "The ways of the data between workers and servers, the first that both ends have is taken: shm (shared "
         "memory, on one machine), tcp (connections of their own, for trusted networks), grpc")
      ->type_name("WAY,...")
      ->envname("EVENKEEL_DATA_PATH")
      ->capture_default_str()
      ->check(CLI::Validator(
          [](std::string& text) {
            std::set<absl::string_view> seen;
            for (const absl::string_view way : absl::StrSplit(text, ',')) {
              const bool known = way == "shm" || way == "tcp" || way == "grpc";
              if (!known) return absl::StrCat("a list of shm, tcp and grpc has \"", way, "\" in it: ", text);
              if (!seen.insert(way).second) return absl::StrCat(way, " is there twice: ", text);
            }
            return std::string();
          },
          ""));
}

TransportOptions ToTransportOptions(const std::string& data_paths) {
  TransportOptions options;
  options.data_paths.clear();
  for (const absl::string_view path : absl::StrSplit(data_paths, ',')) {
    options.data_paths.push_back(path == "shm" ? DataPath::kShm : path == "tcp" ? DataPath::kTcp : DataPath::kGrpc);
  }
  return options;
}

void AddThreadsOption(CLI::App& app, int& threads) {
  app.add_option("--threads", threads,
                 "Threads that compute; without it this machine's cores are shared by the processes that the cluster "
                 "lists for it")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxThreads));
}

CLI::Option* AddTraceOption(CLI::App& app, std::string& trace) {
  return app
      .add_option("--trace", trace,
                  "Writes a timeline of each step there, for ui.perfetto.dev or chrome://tracing; 256 MiB a process at "
                  "most")
      ->type_name("FILE");
}

void AddLogLevelOption(CLI::App& app, std::string& level) {
  app.add_option("--log-level", level, "debug, info, warning or error")
      ->type_name("LEVEL")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

CLI::Validator Within(double low, double high) {
  const std::string range = absl::StrFormat("%g to %g", low, high);
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const bool within = CLI::detail::lexical_cast(text, value) && low <= value && value <= high;
        return within ? std::string() : absl::StrCat(text, " is not a number from ", range);
      },
      absl::StrCat("in ", range));
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    RefuseEmptyOptions(app);
  } catch (const CLI::RequiredError& error) {
    const std::vector<std::string> rest = app.remaining();
    if (rest.empty() || !app.get_subcommands().empty() || app.get_subcommands([](CLI::App*) { return true; }).empty()) {
      app.exit(error);
    } else {
      std::fprintf(stderr, "%s: there is no command '%s'; `%s --help` lists them\n", app.get_name().c_str(),
                   rest.front().c_str(), app.get_name().c_str());
    }
    return static_cast<int>(ExitCode::kWrongInput);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kWrongInput);
  }
  return std::nullopt;
}

LogLevel ToLogLevel(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

}  // namespace evenkeel::apps
