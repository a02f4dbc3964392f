#include "evenkeel/config/cluster.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "config/concat.h"
#include "config/json_text.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

using config_internal::Concat;
using config_internal::FieldPath;
using config_internal::ItemPath;
using config_internal::NearestHint;
using config_internal::ShowType;
using config_internal::ShowValue;
using nlohmann::json;

constexpr std::int64_t kMaxBatchSize = std::int64_t{1} << 30;
constexpr char kVariable[] = "TF_CONFIG";

absl::Status Invalid(std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(path.empty() ? std::string(what) : Concat(path, ": ", what));
}

absl::Status CheckKeys(const json& object, std::string_view path, const std::vector<std::string>& allowed) {
  if (!object.is_object()) {
    return Invalid(path, Concat(ShowValue(object), " is ", ShowType(object), "; expected an object"));
  }
  for (const auto& [key, value] : object.items()) {
    if (std::find(allowed.begin(), allowed.end(), key) != allowed.end()) continue;
    return Invalid(FieldPath(path, key),
                   Concat("unknown field", NearestHint(key, allowed), "; allowed: ", absl::StrJoin(allowed, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<Role> ParseRole(const std::string& name) {
  if (name == "chief" || name == "master") return Role::kChief;
  if (name == "ps") return Role::kPs;
  if (name == "worker") return Role::kWorker;
  if (name == "evaluator") return Role::kEvaluator;
  static const std::vector<std::string> kNames = {"chief", "master", "ps", "worker", "evaluator"};
  return absl::InvalidArgumentError(
      Concat("'", name, "' is not one of ", absl::StrJoin(kNames, ", "), NearestHint(name, kNames)));
}

absl::StatusOr<int> ParseIndex(const std::string& digits) {
  int index = 0;
  const bool plain = !digits.empty() && absl::ascii_isdigit(static_cast<unsigned char>(digits[0]));
  if (plain && absl::SimpleAtoi(digits, &index)) return index;
  return absl::InvalidArgumentError(Concat("'", digits, "' is no index; expected a whole number from 0"));
}

// Every address once, but for port 0, which is another port each time.
class Addresses {
 public:
  absl::Status Add(const HostPort& address, const std::string& path) {
    if (address.port == 0) return absl::OkStatus();
    const auto [other, first] = owners_.emplace(absl::AsciiStrToLower(address.ToString()), path);
    if (first) return absl::OkStatus();
    return Invalid(path, Concat("'", address.ToString(), "' is also the address of ", other->second));
  }

 private:
  std::map<std::string, std::string> owners_;
};

absl::StatusOr<std::vector<HostPort>> ReadAddresses(const json& cluster, const std::string& role,
                                                    Addresses& addresses) {
  std::vector<HostPort> out;
  const auto found = cluster.find(role);
  if (found == cluster.end()) return out;
  const std::string path = FieldPath("cluster", role);
  if (!found->is_array()) {
    return Invalid(path, Concat(ShowValue(*found), " is ", ShowType(*found),
                                "; expected a list of addresses, as [\"host:2222\"]"));
  }
  for (std::size_t i = 0; i < found->size(); ++i) {
    const json& item = (*found)[i];
    const std::string item_path = ItemPath(path, i);
    if (!item.is_string()) {
      return Invalid(item_path, Concat(ShowValue(item), " is ", ShowType(item), "; expected \"host:port\""));
    }
    auto address = ParseHostPort(item.get_ref<const std::string&>());
    if (!address.ok()) return Invalid(item_path, std::string(address.status().message()));
    EK_RETURN_IF_ERROR(addresses.Add(*address, item_path));
    out.push_back(*std::move(address));
  }
  return out;
}

absl::Status ReadCluster(const json& document, Cluster& out) {
  const auto found = document.find("cluster");
  if (found == document.end()) {
    return Invalid("cluster", "is required: the addresses of chief, ps, worker and evaluator");
  }
  EK_RETURN_IF_ERROR(CheckKeys(*found, "cluster", {"chief", "master", "ps", "worker", "evaluator"}));
  if (found->contains("chief") && found->contains("master")) {
    return Invalid("cluster", "'chief' and 'master' are two names of one role; give one");
  }
  Addresses addresses;
  const std::string chief = found->contains("master") ? "master" : "chief";
  EK_ASSIGN_OR_RETURN(const std::vector<HostPort> chiefs, ReadAddresses(*found, chief, addresses));
  if (chiefs.size() != 1) {
    return Invalid(FieldPath("cluster", chief), Concat("lists ", chiefs.size(), " addresses; expected one"));
  }
  out.chief = chiefs[0];
  EK_ASSIGN_OR_RETURN(out.ps, ReadAddresses(*found, "ps", addresses));
  EK_ASSIGN_OR_RETURN(out.workers, ReadAddresses(*found, "worker", addresses));
  EK_ASSIGN_OR_RETURN(out.evaluators, ReadAddresses(*found, "evaluator", addresses));
  if (out.ps.empty()) return Invalid("cluster.ps", "lists no address; parameters need at least one server");
  return absl::OkStatus();
}

absl::StatusOr<TaskId> ReadTask(const json& task) {
  EK_RETURN_IF_ERROR(CheckKeys(task, "task", {"type", "index"}));
  const auto type = task.find("type");
  const auto index = task.find("index");
  if (type == task.end()) return Invalid("task.type", "is required: chief, ps, worker or evaluator");
  if (!type->is_string()) {
    return Invalid("task.type", Concat(ShowValue(*type), " is ", ShowType(*type), "; expected a string"));
  }
  if (index == task.end()) return Invalid("task.index", "is required: a whole number from 0");
  const auto role = ParseRole(type->get_ref<const std::string&>());
  if (!role.ok()) return Invalid("task.type", std::string(role.status().message()));
  if (!index->is_string() && !index->is_number()) {
    return Invalid("task.index",
                   Concat(ShowValue(*index), " is ", ShowType(*index), "; expected a whole number from 0"));
  }
  const auto number = ParseIndex(index->is_string() ? index->get<std::string>() : index->dump());
  if (!number.ok()) return Invalid("task.index", std::string(number.status().message()));
  return TaskId{.role = *role, .index = *number};
}

// An evaluator is no part of the training cluster, so a cluster that lists none may have any.
absl::Status CheckTask(const TaskId& task, const Cluster& cluster, std::string_view index_path) {
  if (task.role == Role::kEvaluator && cluster.evaluators.empty()) return absl::OkStatus();
  const std::size_t count = task.role == Role::kChief    ? 1
                            : task.role == Role::kPs     ? cluster.ps.size()
                            : task.role == Role::kWorker ? cluster.workers.size()
                                                         : cluster.evaluators.size();
  if (static_cast<std::size_t>(task.index) < count) return absl::OkStatus();
  const std::string range = count == 0 ? "none" : count == 1 ? "only 0" : Concat("0 to ", count - 1);
  return Invalid(index_path, Concat(task.index, " is out of range; the cluster lists ", count, " ", ToString(task.role),
                                    count == 1 || task.role == Role::kPs ? "" : "s", " (", range, ")"));
}

absl::Status ReadBatchSizes(const json& document, Cluster& out) {
  const std::string path = "batch_size_list";
  const auto found = document.find(path);
  if (found == document.end()) return absl::OkStatus();
  json list = *found;
  if (found->is_string()) {
    if (absl::Status status = config_internal::ParseJson(found->get_ref<const std::string&>(), list); !status.ok()) {
      return Invalid(path, Concat(ShowValue(*found), " is ", status.message()));
    }
  }
  if (!list.is_array()) {
    return Invalid(path, Concat(ShowValue(list), " is ", ShowType(list),
                                "; expected a list, or a string that holds one: [128, 64]"));
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool whole = list[i].is_number_integer();
    const bool inside = whole && list[i] >= 1 && list[i] <= kMaxBatchSize;
    if (!inside) {
      return Invalid(ItemPath(path, i), Concat(ShowValue(list[i]),
                                               " is no batch size; expected a whole number "
                                               "from 1 to ",
                                               kMaxBatchSize));
    }
    out.batch_sizes.push_back(list[i].get<std::int64_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadText(const json& document, const std::string& key, std::string& out) {
  const auto found = document.find(key);
  if (found == document.end()) return absl::OkStatus();
  if (!found->is_string()) {
    return Invalid(key, Concat(ShowValue(*found), " is ", ShowType(*found), "; expected a string"));
  }
  out = found->get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<Cluster> Parse(std::string_view text, const std::optional<std::string>& task) {
  json document;
  EK_RETURN_IF_ERROR(config_internal::ParseJson(text, document));
  EK_RETURN_IF_ERROR(CheckKeys(document, "", {"cluster", "task", "environment", "model_dir", "batch_size_list"}));
  Cluster out;
  EK_RETURN_IF_ERROR(ReadCluster(document, out));
  EK_RETURN_IF_ERROR(ReadText(document, "environment", out.environment));
  EK_RETURN_IF_ERROR(ReadText(document, "model_dir", out.model_dir));
  EK_RETURN_IF_ERROR(ReadBatchSizes(document, out));
  if (task.has_value()) {
    const auto parsed = ParseTask(*task);
    if (!parsed.ok()) return Invalid("--task", std::string(parsed.status().message()));
    out.task = *parsed;
  } else if (const auto found = document.find("task"); found != document.end()) {
    EK_ASSIGN_OR_RETURN(out.task, ReadTask(*found));
  }
  if (out.task) EK_RETURN_IF_ERROR(CheckTask(*out.task, out, task.has_value() ? "--task" : "task.index"));
  return out;
}

absl::Status CheckBatchBounds(const Experiment& experiment, std::int64_t tasks) {
  const BatchingConfig& batching = experiment.batching;
  const std::int64_t total = experiment.train.global_batch_size;
  if (tasks == 0) return absl::OkStatus();
  if (batching.mode != BatchingConfig::Mode::kOff && total < tasks) {
    return absl::InvalidArgumentError(Concat("train.global_batch_size: ", total, " is less than a sample for each of ",
                                             tasks, " tasks that train; allowed here: at least ", tasks));
  }
  if (batching.mode != BatchingConfig::Mode::kOff && batching.min_batch_size > total / tasks) {
    return absl::InvalidArgumentError(Concat("batching.min_batch_size: ", batching.min_batch_size, " for each of ",
                                             tasks, " tasks that train is more than train.global_batch_size, ", total,
                                             "; allowed here: at most ", total / tasks));
  }
  if (batching.max_batch_size > 0 && batching.max_batch_size < (total + tasks - 1) / tasks) {
    return absl::InvalidArgumentError(Concat("batching.max_batch_size: ", batching.max_batch_size, " for each of ",
                                             tasks, " tasks that train is less than train.global_batch_size, ", total,
                                             "; allowed here: 0, or at least ", (total + tasks - 1) / tasks));
  }
  return absl::OkStatus();
}

}  // namespace

std::string TaskId::ToString() const { return Concat(evenkeel::ToString(role), ":", index); }

absl::StatusOr<TaskId> ParseTask(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == text.npos) {
    return absl::InvalidArgumentError(Concat("'", text, "' is no task; expected TYPE:INDEX, as worker:0"));
  }
  EK_ASSIGN_OR_RETURN(const Role role, ParseRole(std::string(text.substr(0, colon))));
  EK_ASSIGN_OR_RETURN(const int index, ParseIndex(std::string(text.substr(colon + 1))));
  return TaskId{.role = role, .index = index};
}

absl::StatusOr<Cluster> ParseCluster(std::string_view json, std::string_view origin, std::optional<std::string> task) {
  auto cluster = Parse(json, task);
  if (cluster.ok()) return cluster;
  return absl::Status(cluster.status().code(), Concat(origin, ": ", cluster.status().message()));
}

absl::StatusOr<Cluster> LoadCluster(const std::optional<std::string>& file, const std::optional<std::string>& task) {
  if (file.has_value()) {
    const auto text = Storage::Posix().Read(*file, config_internal::kMaxFileBytes);
    if (!text.ok()) return Annotate(text.status(), "cluster");
    return ParseCluster(*text, *file, task);
  }
  const char* text = std::getenv(kVariable);
  if (text == nullptr) {
    return absl::NotFoundError(
        "no cluster: neither --cluster FILE is given nor the environment variable TF_CONFIG set");
  }
  return ParseCluster(text, kVariable, task);
}

absl::Status CheckBatchSizes(const Cluster& cluster, bool chief_trains) {
  if (cluster.batch_sizes.empty()) return absl::OkStatus();
  const std::size_t tasks = cluster.workers.size() + (chief_trains ? 1 : 0);
  if (cluster.batch_sizes.size() == tasks) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat("batch_size_list: ", cluster.batch_sizes.size(), " entries, but ", tasks,
                                           " tasks train (", chief_trains ? "the chief, then " : "",
                                           cluster.workers.size(), " workers); give one each"));
}

absl::Status CheckExperimentFits(const Experiment& experiment, const Cluster& cluster, bool chief_trains) {
  const std::size_t tasks = cluster.workers.size() + (chief_trains ? 1 : 0);
  const std::size_t speeds = experiment.batching.speeds.size();
  if (speeds > 0 && speeds != tasks) {
    return absl::InvalidArgumentError(Concat("batching.speeds: ", speeds, " entries, but ", tasks,
                                             " tasks train; give one each, the chief's first where it trains"));
  }
  if (speeds > 0 && !cluster.batch_sizes.empty()) {
    return absl::InvalidArgumentError(
        "batching.speeds: the cluster's batch_size_list says the shares already; leave out one of the two");
  }
  EK_RETURN_IF_ERROR(CheckBatchBounds(experiment, static_cast<std::int64_t>(tasks)));
  const std::int64_t backups = experiment.train.sync.backup_workers;
  if (backups > 0 && backups >= static_cast<std::int64_t>(tasks)) {
    return absl::InvalidArgumentError(Concat("train.sync.backup_workers: ", backups, " is out of range; ", tasks,
                                             " tasks train, and at least one must be waited for"));
  }
  return absl::OkStatus();
}

}  // namespace evenkeel
