#include "agent_tasks.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "nlohmann/json.hpp"

namespace evenkeel::apps {
namespace {

using Json = nlohmann::ordered_json;

std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  }
  return text;
}

std::set<std::string> OwnAddresses() {
  std::set<std::string> own;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return own;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) own.insert(AddressText(at->ifa_addr));
  freeifaddrs(list);
  own.erase("");
  return own;
}

bool IsThisMachine(const std::string& host, const std::set<std::string>& own) {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0 && host == name) return true;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const std::string address = AddressText(at->ai_addr);
    if (own.count(address) > 0 || address.rfind("127.", 0) == 0) return true;
  }
  return false;
}

// In the order in which a job wants them.
std::vector<TaskId> TasksOfThisMachine(const Cluster& cluster, const std::optional<Role>& role) {
  const std::set<std::string> own = OwnAddresses();
  std::vector<TaskId> tasks;
  const auto add = [&](Role type, const std::vector<HostPort>& addresses) {
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (role && *role != type) continue;
      if (IsThisMachine(addresses[i].host, own)) tasks.push_back({type, static_cast<int>(i)});
    }
  };
  add(Role::kChief, {cluster.chief});
  add(Role::kPs, cluster.ps);
  add(Role::kWorker, cluster.workers);
  add(Role::kEvaluator, cluster.evaluators);
  return tasks;
}

absl::StatusOr<std::optional<Role>> ParseRole(const std::string& role) {
  if (role.empty()) return std::nullopt;
  EK_ASSIGN_OR_RETURN(const TaskId task, ParseTask(absl::StrCat(role, ":0")));
  return task.role;
}

// execve wants a path.
absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    const std::string file = JoinPath(folder.empty() ? "." : std::string(folder), name);
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0) return file;
  }
  return absl::NotFoundError(absl::StrCat(name, ": no such program in PATH"));
}

class Maker {
 public:
  explicit Maker(const AgentTasksOptions& options) : options_(options) {}

  absl::StatusOr<AgentTasks> Make() {
    EK_ASSIGN_OR_RETURN(role_, ParseRole(options_.role));
    if (!options_.program.empty()) {
      EK_ASSIGN_OR_RETURN(program_, FindProgram(options_.program.front()));
    } else if (options_.experiment.empty() && options_.chief.empty()) {  // a worker fetches it from the chief
      return absl::InvalidArgumentError("no experiment: give --experiment FILE, or a program of yours after --");
    }
    const bool cluster = options_.cluster || (options_.chief.empty() && std::getenv("TF_CONFIG") != nullptr);
    AgentTasks made;
    EK_ASSIGN_OR_RETURN(made.tasks, cluster ? OfCluster() : OfNoCluster());
    if (!options_.chief.empty()) {
      EK_ASSIGN_OR_RETURN(const HostPort chief, ParseChiefAddress(options_.chief));
      made.chief_address = chief.ToString();
    } else if (cluster && cluster_.chief.port != 0) {
      made.chief_address = cluster_.chief.ToString();
    }
    return made;
  }

 private:
  absl::StatusOr<std::vector<AgentTask>> OfCluster() {
    if (options_.cluster) {
      EK_ASSIGN_OR_RETURN(text_, Storage::Posix().Read(*options_.cluster));
    } else {
      text_ = std::getenv("TF_CONFIG");
    }
    const std::string origin = options_.cluster.value_or("TF_CONFIG");
    const std::optional<std::string> no_task;
    EK_ASSIGN_OR_RETURN(cluster_, ParseCluster(text_, origin, no_task));
    std::vector<TaskId> tasks;
    for (const std::string& text : options_.tasks) {
      EK_ASSIGN_OR_RETURN(const TaskId task, ParseTask(text));
      EK_RETURN_IF_ERROR(Annotate(ParseCluster(text_, origin, text).status(), "--task " + text));
      tasks.push_back(task);
    }
    if (tasks.empty() && options_.count > 0) {
      const Role role = role_.value_or(Role::kWorker);
      for (int i = 0; i < options_.count; ++i) {
        tasks.push_back({role, i});
        EK_RETURN_IF_ERROR(ParseCluster(text_, origin, tasks.back().ToString()).status());
      }
    }
    if (tasks.empty()) tasks = TasksOfThisMachine(cluster_, role_);
    if (tasks.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": lists no ", role_ ? ToString(*role_) : "task",
                                                     " for this machine; give --task TYPE:INDEX"));
    }
    std::vector<AgentTask> made;
    for (const TaskId& task : tasks) made.push_back(Made(task, TfConfig(Json::parse(text_), task)));
    return made;
  }

  absl::StatusOr<std::vector<AgentTask>> OfNoCluster() {
    if (!options_.tasks.empty()) {
      return absl::InvalidArgumentError("--task needs a cluster: give --cluster, or TF_CONFIG in the environment");
    }
    const int count = options_.count > 0 ? options_.count : 1;
    std::vector<AgentTask> made;
    if (program_.empty()) {
      if (options_.chief.empty()) {
        return absl::InvalidArgumentError("which tasks? give --cluster FILE, TF_CONFIG in the environment, or --chief");
      }
      if (role_ && *role_ != Role::kWorker) {
        return absl::InvalidArgumentError(
            absl::StrCat("--role ", options_.role, ": only workers join with --chief alone; give --cluster too"));
      }
    }
    for (int i = 0; i < count; ++i) {
      const TaskId task{role_.value_or(Role::kWorker), i};
      if (program_.empty()) {
        made.push_back(Made(task, ""));
        made.back().spec.command.insert(made.back().spec.command.end(), {"--chief", options_.chief});
        continue;
      }
      Json json;
      json["cluster"] = Json::object();
      if (!options_.chief.empty()) json["cluster"]["chief"] = {options_.chief};
      made.push_back(Made(task, TfConfig(std::move(json), task)));
    }
    return made;
  }

  static std::string TfConfig(Json json, const TaskId& task) {
    json["task"] = {{"type", ToString(task.role)}, {"index", task.index}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::vector<std::string> RoleCommand(Role role) const {
    std::vector<std::string> command{JoinPath(options_.program_folder, absl::StrCat("evenkeel-", ToString(role))),
                                     "--log-level", options_.log_level};
    const auto give = [&](const char* option, const std::string& value) {
      if (!value.empty()) command.insert(command.end(), {option, value});
    };
    give("--experiment", options_.experiment);
    for (const std::string& text : options_.overrides) give("--set", text);
    give("--model-dir", options_.model_dir);
    if (options_.threads > 0) give("--threads", absl::StrCat(options_.threads));
    if (role != Role::kPs) give("--data", options_.data);
    if (role == Role::kChief && options_.train) command.push_back("--train");
    return command;
  }

  AgentTask Made(const TaskId& task, const std::string& tf_config) const {
    AgentTask made;
    made.spec.name = task.ToString();
    if (!tf_config.empty()) made.spec.environment = {{"TF_CONFIG", tf_config}};
    if (program_.empty()) {
      made.spec.command = RoleCommand(task.role);
      made.policy = task.role == Role::kChief ? RestartOn::kSignal : RestartOn::kFailure;
    } else {
      made.spec.command = options_.program;
      made.spec.command.front() = program_;
      made.policy = RestartOn::kNotZero;
    }
    if (!options_.log_folder.empty()) {
      made.spec.log_file =
          JoinPath(options_.log_folder, absl::StrCat(absl::StrReplaceAll(made.spec.name, {{":", "-"}}), ".log"));
    }
    return made;
  }

  const AgentTasksOptions& options_;
  std::optional<Role> role_;
  std::string program_;  // path
  std::string text_;     // of the cluster
  Cluster cluster_;
};

}  // namespace

absl::StatusOr<AgentTasks> MakeAgentTasks(const AgentTasksOptions& options) { return Maker(options).Make(); }

}  // namespace evenkeel::apps
