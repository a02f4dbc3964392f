// A whole cluster in one process: a chief, servers and workers, each on a thread of its own, over the in-process
// transport, with a model_dir on disk.
//
// Threading: a Cluster is used by the test's thread; StopChief, StopMember, AddWorker, AddServer, ScaleServers,
// LoseChief,
//            BreakStreams and AwaitChief also by a read hook.
// Time:      real, but nothing is measured. Whoever does not end within kPatience is named, and the program ends.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/stream.h"
#include "nlohmann/json.hpp"

namespace evenkeel::scenarios {

constexpr std::int64_t kSamples = 1009;  // a prime: no batch divides it
constexpr Duration kPatience = std::chrono::seconds(120);

// A folder that goes away with its contents.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Two layers over kSamples samples of 20 features in three classes, momentum, global batch 100, the reference backend.
Experiment Mlp(const std::vector<std::string>& overrides);
// The same with so many parameters that a server has room for ten updates.
Experiment WideMlp(const std::vector<std::string>& overrides);
// Mlp with batch norm after the first layer.
Experiment MlpWithBatchNorm(const std::vector<std::string>& overrides);

class Cluster;
// Called by a worker's reading thread for each training sample, with how many this worker has read. May block.
using ReadHook = std::function<void(Cluster& cluster, int worker, std::int64_t samples_read)>;

struct ClusterOptions {
  Experiment experiment;
  int workers = 1;
  int servers = 1;
  std::string model_dir;
  ReadHook on_read = nullptr;
  Storage* chief_storage = &Storage::Posix();
};

struct Ended {
  absl::Status chief;
  std::map<std::string, absl::Status> members;  // by name
  nlohmann::json summary;                       // null where the chief wrote none
  bool all_ok() const;
  std::string ToString() const;
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();

  // Waits for every thread.
  Ended Wait();

  void StopChief(const std::string& reason) { chief_stop_.Request(reason); }
  // "worker:1" or "ps:0".
  void StopMember(const std::string& name, const std::string& reason);
  // Adds a worker or a server that the cluster does not list.
  void AddWorker(int worker);
  void AddServer(int server);
  // As `evenkeel scale` orders it; what the chief says.
  std::string ScaleServers(std::uint32_t servers);
  // From now on no member reaches the chief, as if its machine were gone.
  void LoseChief();
  // Cuts every stream once; members may come back.
  void BreakStreams();
  // Returns once the chief's RunChief has.
  void AwaitChief();
  // Returns once all servers and workers have ended.
  void AwaitMembers();

 private:
  struct Transports;
  struct Member {
    std::thread thread;
    std::shared_ptr<StopSource> stop;
    bool done = false;
    absl::Status status;
  };
  void Start(const std::string& name, std::function<absl::Status(StopSource&)> run);
  // Ends the program, naming who is still running, when `done` (called under the lock) does not come true in time.
  template <class Done>
  void Await(Done done);

  const ClusterOptions options_;
  std::unique_ptr<Transports> transports_;
  StopSource chief_stop_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Member> members_ ABSL_GUARDED_BY(mutex_);
  bool collected_ = false;
};

// Runs a cluster to its end.
Ended RunCluster(ClusterOptions options);

// The newest checkpoint's flat vector, and how far two are apart: |a - b| / |b|.
std::vector<float> FinalParameters(const std::string& model_dir);
double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace evenkeel::scenarios
