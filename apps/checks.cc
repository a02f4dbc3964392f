#include "checks.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"

namespace evenkeel::apps {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const HostPort& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failure != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(address.ToString(), ": host ", address.host, " is unknown (", gai_strerror(failure), ")"));
  }
  return AddressList(found, &freeaddrinfo);
}

// 0, or the errno of listening there.
int TryListen(const addrinfo& info) {
  const int fd = socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC, info.ai_protocol);
  if (fd < 0) return errno;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(fd, info.ai_addr, info.ai_addrlen) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  return error;
}

bool IsThisMachine(const HostPort& address) {
  HostPort any = address;
  any.port = 0;
  const auto found = Resolve(any);
  if (!found.ok()) return false;
  for (const addrinfo* info = found->get(); info != nullptr; info = info->ai_next) {
    if (TryListen(*info) == 0) return true;
  }
  return false;
}

std::vector<HostPort> All(const Cluster& cluster) {
  std::vector<HostPort> all{cluster.chief};
  all.insert(all.end(), cluster.ps.begin(), cluster.ps.end());
  all.insert(all.end(), cluster.workers.begin(), cluster.workers.end());
  all.insert(all.end(), cluster.evaluators.begin(), cluster.evaluators.end());
  return all;
}

// MemAvailable; -1 where the machine does not tell.
std::int64_t FreeBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (std::int64_t kib; file >> name >> kib && std::getline(file, unit);) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return -1;
}

std::string Size(std::int64_t bytes) {
  if (bytes >= 1 << 30) return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= 1 << 20) return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return absl::StrFormat("%.1f KiB", static_cast<double>(bytes) / (1 << 10));
}

}  // namespace

absl::StatusOr<std::string> DescribeCluster(const Cluster& cluster, bool chief_trains) {
  EK_RETURN_IF_ERROR(CheckBatchSizes(cluster, chief_trains));
  return absl::StrCat("chief ", cluster.chief.ToString(), ", ", cluster.ps.size(), " ps, ", cluster.workers.size(),
                      " workers, ", cluster.evaluators.size(), " evaluators");
}

std::string DescribeExperiment(const Experiment& experiment, const absl::StatusOr<Cluster>& cluster,
                               bool chief_trains) {
  std::string text = absl::StrCat("spec ", experiment.spec_hash);
  if (!cluster.ok()) return text;
  const std::int64_t listed = static_cast<std::int64_t>(cluster->workers.size()) + (chief_trains ? 1 : 0);
  const std::int64_t wanted = experiment.membership.workers_min;
  if (wanted > listed) {
    absl::StrAppend(&text, "; membership.workers_min is ", wanted, ", the cluster lists ", listed,
                    ": the others must come with evenkeel-worker --chief ", cluster->chief.ToString());
  }
  return text;
}

absl::StatusOr<std::string> CheckAddresses(const Cluster& cluster) {
  std::set<std::string> hosts;
  for (const HostPort& address : All(cluster)) {
    EK_RETURN_IF_ERROR(Resolve(address).status());
    hosts.insert(address.host);
  }
  return absl::StrCat("known hosts: ", absl::StrJoin(hosts, ", "));
}

absl::StatusOr<std::string> CheckPorts(const Cluster& cluster) {
  std::vector<std::pair<std::string, HostPort>> listeners{{"chief:0", cluster.chief}};
  for (std::size_t i = 0; i < cluster.ps.size(); ++i) listeners.emplace_back(absl::StrCat("ps:", i), cluster.ps[i]);
  int here = 0;
  for (const auto& [name, address] : listeners) {
    if (!IsThisMachine(address)) continue;
    ++here;
    EK_ASSIGN_OR_RETURN(const AddressList found, Resolve(address));
    for (const addrinfo* info = found.get(); info != nullptr; info = info->ai_next) {
      const int error = TryListen(*info);
      if (error == EADDRINUSE) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " at ", address.ToString(), ": port ", address.port, " is in use"));
      }
      if (error == EACCES) {
        return absl::InvalidArgumentError(absl::StrCat(name, " at ", address.ToString(), ": ", std::strerror(error)));
      }
    }
  }
  return absl::StrCat("free: all ", here, " that chief and servers use on this machine");
}

absl::StatusOr<std::string> DescribeData(const Experiment& experiment, const absl::StatusOr<OpenedData>& training,
                                         const std::string& data_folder) {
  EK_RETURN_IF_ERROR(training.status());
  std::string text = absl::StrCat(training->dataset->size(), " samples to train on");
  const auto eval = OpenEvalData(experiment.input, data_folder, training->statistics_json);
  if (eval.ok()) {
    absl::StrAppend(&text, ", ", eval->dataset->size(), " to evaluate on");
  } else if (experiment.input.eval || experiment.input.eval_fraction > 0) {
    return eval.status();
  }
  return absl::StrCat(text, ", fingerprint ", training->fingerprint);
}

absl::StatusOr<std::int64_t> BuildModel(const Experiment& experiment, const Dataset& dataset) {
  EK_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeCpuBackend(CpuBackendOptions{1}));
  const ExampleSpec& spec = dataset.spec();
  EK_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      Model::Build(experiment.model,
                                   ModelOptions{spec.features, spec.label_width, spec.sparse, spec.classes}, *backend));
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : model->tensors()) {
    bytes += tensor.shape.elements() * static_cast<std::int64_t>(sizeof(float));
  }
  return bytes;
}

std::string DescribeModel(std::int64_t parameter_bytes) {
  return absl::StrCat(parameter_bytes / static_cast<std::int64_t>(sizeof(float)), " parameters, ",
                      Size(parameter_bytes));
}

absl::StatusOr<std::string> CheckMemory(const Experiment& experiment, const Cluster& cluster, bool chief_trains,
                                        std::int64_t parameter_bytes) {
  // A server: three versions, a snapshot, the slots, and a staging slot for each worker. A worker: parameters,
  // gradients.
  constexpr std::int64_t kServerCopies = 4, kWorkerCopies = 2;
  const auto workers = static_cast<std::int64_t>(cluster.workers.size()) + (chief_trains ? 1 : 0);
  const auto slots = static_cast<std::int64_t>(SlotNames(experiment.train.optimizer).size());
  std::int64_t bytes = 0;
  for (const HostPort& address : cluster.ps) {
    if (!IsThisMachine(address)) continue;
    bytes += parameter_bytes * (kServerCopies + slots + workers) / static_cast<std::int64_t>(cluster.ps.size());
  }
  for (const HostPort& address : cluster.workers) bytes += IsThisMachine(address) ? parameter_bytes * kWorkerCopies : 0;
  if (chief_trains && IsThisMachine(cluster.chief)) bytes += parameter_bytes * kWorkerCopies;
  const std::int64_t free = FreeBytes();
  if (free >= 0 && bytes > free) {
    return absl::InvalidArgumentError(absl::StrCat("the processes of this machine need ", Size(bytes),
                                                   " for parameters alone; ", Size(free), " are free"));
  }
  return absl::StrCat(Size(bytes), " for parameters on this machine, ", free < 0 ? "unknown" : Size(free), " free");
}

absl::StatusOr<std::string> CheckModelDir(const std::string& model_dir) {
  if (model_dir.empty()) {
    return absl::InvalidArgumentError("none is given: --model-dir, or model_dir in the cluster file");
  }
  Storage& storage = Storage::Posix();
  const bool made = !storage.Exists(model_dir);
  EK_RETURN_IF_ERROR(storage.MakeFolder(model_dir));
  const std::string nonce = absl::StrFormat("%016x", RandomNonce());
  const std::string path = JoinPath(model_dir, absl::StrCat("check-", nonce));
  const std::string renamed = absl::StrCat(path, ".renamed");
  EK_RETURN_IF_ERROR(storage.WriteAtomic(path, AsBytes(nonce)));
  absl::Status status = storage.Rename(path, renamed);
  if (status.ok()) {
    const auto read = storage.Read(renamed);
    status = read.status();
    if (read.ok() && *read != nonce) status = absl::DataLossError(absl::StrCat(renamed, " reads back differently"));
  }
  (void)storage.Remove(status.ok() ? renamed : path);
  if (made) (void)storage.RemoveFolder(model_dir);
  EK_RETURN_IF_ERROR(status);
  return absl::StrCat(model_dir, " can be written");
}

}  // namespace evenkeel::apps
