#include "evenkeel/launch/local_job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "evenkeel/core/role.h"
#include "evenkeel/core/storage.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

constexpr char kAnyPort[] = "127.0.0.1:0";

std::string TfConfig(const LocalJobOptions& options, int chief_port, Role role, int index) {
  const int awaited = options.awaited_workers < 0 ? options.workers : options.awaited_workers;
  const int workers = role == Role::kChief ? awaited : options.workers;
  nlohmann::ordered_json cluster;
  cluster["chief"] = {absl::StrCat("127.0.0.1:", chief_port)};
  cluster["ps"] = std::vector<std::string>(static_cast<std::size_t>(options.servers), kAnyPort);
  cluster["worker"] = std::vector<std::string>(static_cast<std::size_t>(workers), kAnyPort);
  if (options.evaluator) cluster["evaluator"] = {kAnyPort};
  nlohmann::ordered_json json;
  json["cluster"] = cluster;
  json["task"] = {{"type", ToString(role)}, {"index", index}};
  json["model_dir"] = options.model_dir;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ProcessSpec LocalProcess(const LocalJobOptions& options, int chief_port, Role role, int index) {
  ProcessSpec spec;
  spec.name = absl::StrCat(ToString(role), ":", index);
  spec.command = {JoinPath(options.program_folder, absl::StrCat("evenkeel-", ToString(role))),
                  "--experiment",
                  options.experiment,
                  "--model-dir",
                  options.model_dir,
                  "--log-level",
                  options.log_level};
  for (const std::string& text : options.overrides) {
    spec.command.push_back("--set");
    spec.command.push_back(text);
  }
  if (!options.trace.empty() && role != Role::kEvaluator) {
    spec.command.push_back("--trace");
    spec.command.push_back(options.trace);
  }
  if (options.threads > 0) {
    spec.command.push_back("--threads");
    spec.command.push_back(absl::StrCat(options.threads));
  }
  if (!options.data_folder.empty() && role != Role::kPs) {
    spec.command.push_back("--data");
    spec.command.push_back(options.data_folder);
  }
  spec.environment = {{"TF_CONFIG", TfConfig(options, chief_port, role, index)}};
  spec.log_file = JoinPath(options.log_folder, absl::StrCat(absl::StrReplaceAll(spec.name, {{":", "-"}}), ".log"));
  return spec;
}

}  // namespace

ProcessSpec LocalChiefAgain(const LocalJobOptions& options, int port) {
  ProcessSpec spec = LocalProcess(options, port, Role::kChief, 0);
  if (options.chief_trains) spec.command.push_back("--train");
  return spec;
}

ProcessSpec LocalChief(const LocalJobOptions& options) {
  ProcessSpec spec = LocalChiefAgain(options, 0);
  spec.command.push_back("--ready-fd");
  spec.command.push_back(absl::StrCat(kChildDescriptor));
  return spec;
}

ProcessSpec LocalServer(const LocalJobOptions& options, int chief_port, int index) {
  LocalJobOptions more = options;
  more.servers = std::max(options.servers, index + 1);
  return LocalProcess(more, chief_port, Role::kPs, index);
}

std::vector<ProcessSpec> LocalMembers(const LocalJobOptions& options, int chief_port) {
  std::vector<ProcessSpec> members;
  for (int i = 0; i < options.servers; ++i) members.push_back(LocalServer(options, chief_port, i));
  for (int i = 0; i < options.workers; ++i) members.push_back(LocalProcess(options, chief_port, Role::kWorker, i));
  if (options.evaluator) members.push_back(LocalProcess(options, chief_port, Role::kEvaluator, 0));
  return members;
}

}  // namespace evenkeel
