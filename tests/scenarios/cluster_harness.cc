#include "scenarios/cluster_harness.h"

#include <stdlib.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/protocol/question.h"
#include "evenkeel/runtime/chief_runner.h"
#include "evenkeel/runtime/ps_runner.h"
#include "evenkeel/transport/transports.h"
#include "evenkeel/worker/worker.h"

namespace evenkeel::scenarios {
namespace {

constexpr int kFeatures = 20;
constexpr int kClasses = 3;
constexpr char kChiefAddress[] = "chief:1";

// --- the data -------------------------------------------------------------------------------------------------------

using SampleHook = std::function<void(int worker, std::int64_t samples_read)>;

// The running cluster's hook, for data sets that are opened now.
struct CurrentHook {
  Mutex mutex;
  SampleHook hook ABSL_GUARDED_BY(mutex);
};
CurrentHook& Current() {
  static CurrentHook current;
  return current;
}

// Clouds around three centres, a function of the sample's index alone.
class Clouds final : public Dataset {
 public:
  Clouds(std::int64_t poison, int worker, SampleHook hook)
      : poison_(poison), worker_(worker), hook_(std::move(hook)), opener_(std::this_thread::get_id()) {
    spec_.features = Shape{kFeatures};
    spec_.classes = kClasses;
  }
  const ExampleSpec& spec() const override { return spec_; }
  std::int64_t size() const override { return kSamples; }
  absl::Status Append(std::int64_t index, Batch& batch) const override {
    Rng rng(static_cast<std::uint64_t>(index), 17);
    const int label = static_cast<int>(rng.Below(kClasses));
    for (int i = 0; i < kFeatures; ++i) {
      const double centre = (i % kClasses == label) ? 1.0 : -0.5;
      batch.features.push_back(static_cast<float>(centre + rng.NextNormal()));
    }
    if (index == poison_) batch.features.back() = std::numeric_limits<float>::infinity();
    batch.labels.push_back(static_cast<float>(label));
    // The opener's reads are the fingerprint's.
    if (hook_ && std::this_thread::get_id() != opener_) hook_(worker_, ++read_);
    return absl::OkStatus();
  }

 private:
  ExampleSpec spec_;
  const std::int64_t poison_;
  const int worker_;
  const SampleHook hook_;
  const std::thread::id opener_;
  mutable std::atomic<std::int64_t> read_{0};
};

void PrepareProcess() {
  static std::once_flag once;
  std::call_once(once, [] {
    InitLog("", getenv("EVENKEEL_TEST_LOG") != nullptr ? LogLevel::kInfo : LogLevel::kError);
    // A worker's data_folder tells whose data set it is.
    RegisterDataset("clouds",
                    [](const Attributes& attributes, bool,
                       std::string_view data_folder) -> absl::StatusOr<std::unique_ptr<Dataset>> {
                      std::int64_t poison = -1;
                      if (auto it = attributes.find("poison"); it != attributes.end())
                        poison = std::get<std::int64_t>(it->second);
                      int worker = -1;
                      (void)absl::SimpleAtoi(absl::string_view(data_folder.data(), data_folder.size()), &worker);
                      MutexLock lock(Current().mutex);
                      return std::make_unique<Clouds>(poison, worker, Current().hook);
                    });
  });
}

Experiment Parse(const std::string& hidden, const std::vector<std::string>& overrides) {
  PrepareProcess();
  const std::string text = absl::StrCat(R"({
    "model": {"layers": [)",
                                        hidden, R"(, {"dense": {"units": 3}, "name": "scores"}]},
    "input": {"train": {"custom": {"type": "clouds"}}, "classes": 3},
    "train": {"epochs": 2, "global_batch_size": 100, "seed": 7, "bucket_bytes": 512, "backend": "reference",
              "optimizer": {"momentum": {"momentum": 0.9}}, "schedule": {"learning_rate": 0.05}},
    "membership": {"renew_ms": 100, "drain_ms": 60000},
    "batching": {"mode": "off", "min_batch_size": 1}
  })");
  auto experiment = ParseExperiment(text, "scenario", overrides);
  INFO(experiment.status());
  REQUIRE(experiment.ok());
  return *std::move(experiment);
}

}  // namespace

Experiment Mlp(const std::vector<std::string>& overrides) {
  return Parse(R"({"dense": {"units": 16, "activation": "relu"}, "name": "hidden"})", overrides);
}

Experiment WideMlp(const std::vector<std::string>& overrides) {
  return Parse(R"({"dense": {"units": 8000, "activation": "relu"}, "name": "hidden"})", overrides);
}

Experiment MlpWithBatchNorm(const std::vector<std::string>& overrides) {
  return Parse(R"({"dense": {"units": 16}, "name": "hidden"}, {"batch_norm": {}, "name": "norm"}, {"relu": {}})",
               overrides);
}

TempFolder::TempFolder() {
  std::string name = "/tmp/evenkeel_scenario_XXXXXX";
  REQUIRE(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempFolder::~TempFolder() { (void)Storage::Posix().RemoveFolder(path_); }

// --- streams that break ---------------------------------------------------------------------------------------------

// The members' way out, which the test can cut.
class BreakableTransport final : public Transport {
 public:
  explicit BreakableTransport(Transport& inner) : inner_(inner) {}
  absl::StatusOr<std::unique_ptr<Listener>> Listen(Service service, const std::string& address,
                                                   Acceptor acceptor) override {
    return inner_.Listen(service, address, std::move(acceptor));
  }
  std::shared_ptr<Stream> Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler,
                                  Duration timeout) override {
    // Under the lock, so that no stream slips past LoseChief.
    MutexLock lock(mutex_);
    const bool lost = chief_lost_ && service == Service::kChief;
    std::shared_ptr<Stream> stream = inner_.Connect(service, lost ? "nobody:1" : address, std::move(handler), timeout);
    streams_.push_back({service, stream});
    return stream;
  }
  void LoseChief() {
    {
      MutexLock lock(mutex_);
      chief_lost_ = true;
    }
    Break(true);
  }
  void Break(bool only_chief) {
    std::vector<std::shared_ptr<Stream>> close;
    {
      MutexLock lock(mutex_);
      for (const auto& [service, weak] : streams_) {
        std::shared_ptr<Stream> stream = weak.lock();
        if (stream && (service == Service::kChief || !only_chief)) close.push_back(std::move(stream));
      }
    }
    for (const auto& stream : close) stream->Close();
  }

 private:
  Transport& inner_;
  Mutex mutex_;
  bool chief_lost_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<Service, std::weak_ptr<Stream>>> streams_ ABSL_GUARDED_BY(mutex_);
};

struct Cluster::Transports {
  std::unique_ptr<Transport> inner = MakeInprocTransport();
  BreakableTransport members{*inner};
};

// --- the cluster ----------------------------------------------------------------------------------------------------

bool Ended::all_ok() const {
  bool ok = chief.ok();
  for (const auto& [name, status] : members) ok = ok && status.ok();
  return ok;
}

std::string Ended::ToString() const {
  std::string text = absl::StrCat("chief: ", chief.ToString());
  for (const auto& [name, status] : members) absl::StrAppend(&text, "\n", name, ": ", status.ToString());
  return absl::StrCat(text, "\nsummary: ", summary.dump(2));
}

Cluster::Cluster(ClusterOptions options) : options_(std::move(options)), transports_(std::make_unique<Transports>()) {
  {
    MutexLock lock(Current().mutex);
    Current().hook = nullptr;
    if (options_.on_read) {
      Current().hook = [this](int worker, std::int64_t read) { options_.on_read(*this, worker, read); };
    }
  }
  Start("chief", [this](StopSource&) {
    ChiefRunnerOptions chief;
    chief.experiment = options_.experiment;
    chief.listen_address = kChiefAddress;
    chief.model_dir = options_.model_dir;
    chief.servers = static_cast<std::uint32_t>(options_.servers);
    for (int i = 0; i < options_.workers; ++i) chief.listed_workers.push_back(absl::StrCat("worker:", i));
    return RunChief(chief, *transports_->inner, *options_.chief_storage, Clock::Real(), chief_stop_);
  });
  for (int i = 0; i < options_.servers; ++i) AddServer(i);
  for (int i = 0; i < options_.workers; ++i) AddWorker(i);
}

Cluster::~Cluster() {
  if (!collected_) (void)Wait();
}

void Cluster::Start(const std::string& name, std::function<absl::Status(StopSource&)> run) {
  MutexLock lock(mutex_);
  Member& member = members_[name];
  member.stop = std::make_shared<StopSource>();
  member.thread = std::thread([this, name, stop = member.stop, run = std::move(run)] {
    absl::Status status = run(*stop);
    MutexLock done_lock(mutex_);
    members_[name].status = std::move(status);
    members_[name].done = true;
    changed_.NotifyAll();
  });
}

void Cluster::AddWorker(int worker) {
  Start(absl::StrCat("worker:", worker), [this, worker](StopSource& stop) {
    WorkerOptions options;
    options.experiment = options_.experiment;
    options.name = absl::StrCat("worker:", worker);
    options.index = worker < options_.workers ? worker : -1;
    options.chief_address = kChiefAddress;
    options.data_folder = absl::StrCat(worker);
    return RunWorker(options, transports_->members, Clock::Real(), stop);
  });
}

void Cluster::AddServer(int server) {
  Start(absl::StrCat("ps:", server), [this, server](StopSource& stop) {
    PsOptions ps;
    ps.name = absl::StrCat("ps:", server);
    ps.index = server;
    ps.chief_address = kChiefAddress;
    ps.listen_address = absl::StrCat("ps", server, ":1");
    ps.experiment_json = options_.experiment.canonical_json;
    ps.spec_hash = options_.experiment.spec_hash;
    ps.model_dir = options_.model_dir;
    ps.chief_timeout = options_.experiment.membership.chief_timeout;
    return RunPs(ps, transports_->members, Storage::Posix(), Clock::Real(), stop);
  });
}

void Cluster::StopMember(const std::string& name, const std::string& reason) {
  std::shared_ptr<StopSource> stop;
  {
    MutexLock lock(mutex_);
    stop = members_.at(name).stop;
  }
  stop->Request(reason);
}

std::string Cluster::ScaleServers(std::uint32_t servers) {
  StopSource stop;
  const auto answer = Ask(Scale{servers}, kChiefAddress, *transports_->inner, Clock::Real(), stop, kPatience);
  if (!answer.ok()) return answer.status().ToString();
  const auto* reply = std::get_if<OrderReply>(&*answer);
  return reply != nullptr && reply->accepted ? reply->message : absl::StrCat("not accepted: ", NameOf(*answer));
}

void Cluster::LoseChief() { transports_->members.LoseChief(); }
void Cluster::BreakStreams() { transports_->members.Break(/*only_chief=*/false); }

template <class Done>
void Cluster::Await(Done done) {
  const TimePoint deadline = Clock::Real().Now() + kPatience;
  MutexLock lock(mutex_);
  while (!done()) {
    if (Clock::Real().Now() < deadline) {
      changed_.WaitUntil(mutex_, deadline);
      continue;
    }
    for (const auto& [name, member] : members_) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), member.done ? member.status.ToString().c_str() : "hangs");
    }
    std::fflush(stderr);
    std::_Exit(1);  // threads that hang cannot be joined
  }
}

void Cluster::AwaitChief() {
  Await([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return members_.at("chief").done; });
}

void Cluster::AwaitMembers() {
  Await([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    bool all = true;
    for (const auto& [name, member] : members_) all = all && (member.done || name == "chief");
    return all;
  });
}

Ended Cluster::Wait() {
  Await([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    bool all = true;
    for (const auto& [name, member] : members_) all = all && member.done;
    return all;
  });
  Ended ended;
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    for (auto& [name, member] : members_) {
      (name == "chief" ? ended.chief : ended.members[name]) = member.status;
      if (member.thread.joinable()) threads.push_back(std::move(member.thread));
    }
  }
  for (std::thread& thread : threads) thread.join();
  collected_ = true;
  {
    MutexLock lock(Current().mutex);
    Current().hook = nullptr;
  }
  auto text = Storage::Posix().Read(JoinPath(options_.model_dir, "summary.json"));
  if (text.ok()) ended.summary = nlohmann::json::parse(*text);
  return ended;
}

Ended RunCluster(ClusterOptions options) { return Cluster(std::move(options)).Wait(); }

std::vector<float> FinalParameters(const std::string& model_dir) {
  auto list = ListCheckpoints(Storage::Posix(), model_dir);
  REQUIRE(list.ok());
  REQUIRE_FALSE(list->versions.empty());
  auto reader = CheckpointReader::Open(Storage::Posix(), model_dir, list->versions.back());
  REQUIRE(reader.ok());
  std::vector<float> parameters(static_cast<std::size_t>(reader->manifest().total_floats));
  REQUIRE(reader->Read("parameters", 0, parameters).ok());
  return parameters;
}

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  REQUIRE(norm > 0);
  return std::sqrt(difference / norm);
}

}  // namespace evenkeel::scenarios
