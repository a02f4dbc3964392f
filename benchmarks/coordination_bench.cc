// What one chief coordinates: commits a second, and its CPU time for each, with the connections of so many workers
// whose computing is sleep. The chief is RunChief in a process of its own, with its log on disk; all members are
// scripts in a second process that speak to it over streams of their own, as those of a job do. A server that only says
// so seals and applies, so that no data moves.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "bench_options.h"
#include "bench_process.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/stop.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/member_session.h"
#include "evenkeel/runtime/chief_runner.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel::bench {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);  // for processes and members to begin and to end
constexpr std::int64_t kSamplesEach = 32;                 // of the global batch
constexpr std::int64_t kFeatures = 100;

struct Job {
  Experiment experiment;
  std::string model_dir;
  int workers = 0;
  Duration compute{};  // of a step, a fifth more or less
  double seconds = 0;  // of the measurement, after a quarter as much to warm up
};

absl::StatusOr<Experiment> MakeExperiment(const std::string& mode, int workers) {
  return ParseExperiment(
      absl::Substitute(
          R"({
        "name": "coordination",
        "model": {"layers": [{"dense": {"units": 1}}], "loss": "mse"},
        "input": {"train": {"csv": {"files": ["none.csv"], "label": "y"}}},
        "train": {"epochs": 1000000, "global_batch_size": $0, "sync": $1},
        "checkpoint": {"every_seconds": 3600}, "membership": {"workers_max": $2}})",
          kSamplesEach * workers,
          mode == "ssp" ? R"({"mode": "ssp", "staleness": 3})" : absl::StrCat(R"({"mode": ")", mode, "\"}"), workers),
      "benchmark", {});
}

TimePoint Now() { return Clock::Real().Now(); }

// --- the chief's process --------------------------------------------------------------------------------------------

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Tells its port, then its CPU time as often as it is asked, until the line ends.
absl::Status ServeChief(const Job& job, Line& line) {
  ChiefRunnerOptions options;
  options.experiment = job.experiment;
  options.listen_address = "127.0.0.1:0";
  options.model_dir = job.model_dir;
  for (int i = 0; i < job.workers; ++i) options.listed_workers.push_back(absl::StrCat("worker:", i));
  options.on_listening = [&line](int port) { (void)line.Send(absl::StrCat("+", port), Now() + kPatience); };
  StopSource stop;
  std::thread asked([&] {
    while (line.Receive(kNever).ok()) (void)line.Send(absl::StrCat("+", CpuSeconds()), Now() + kPatience);
    stop.Request("the measurement is over");
  });
  const std::unique_ptr<Transport> transport = MakeTransport({});
  const absl::Status status = RunChief(options, *transport, Storage::Posix(), Clock::Real(), stop);
  line.StopReceiving();
  asked.join();
  return status;
}

// --- the members' process -------------------------------------------------------------------------------------------

// Runs functions when they are due, on one thread.
class Timer {
 public:
  Timer() : thread_([this] { Run(); }) {}
  ~Timer() {
    {
      MutexLock lock(mutex_);
      over_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  void At(TimePoint due, std::function<void()> function) {
    MutexLock lock(mutex_);
    const bool first = entries_.empty() || due < entries_.top().due;
    entries_.push({due, std::move(function)});
    if (first) changed_.NotifyAll();
  }

 private:
  struct Entry {
    TimePoint due;
    std::function<void()> function;
    bool operator<(const Entry& other) const { return due > other.due; }  // the earliest on top
  };
  void Run() {
    for (;;) {
      std::function<void()> due;
      {
        MutexLock lock(mutex_);
        while (!over_ && (entries_.empty() || entries_.top().due > Now())) {
          changed_.WaitUntil(mutex_, entries_.empty() ? kNever : entries_.top().due);
        }
        if (over_) return;
        due = entries_.top().function;
        entries_.pop();
      }
      due();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::priority_queue<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the others
};

// Whoever takes part, until one of them fails or all have left.
class Watch {
 public:
  explicit Watch(int members) : left_(members) {}
  void Ended(const std::string& name, const absl::Status& status) {
    MutexLock lock(mutex_);
    --left_;
    if (!status.ok()) failure_.Update(absl::InternalError(absl::StrCat(name, ": ", status.message())));
    changed_.NotifyAll();
  }
  // Until then, or until a member failed.
  absl::Status Pause(TimePoint until) {
    MutexLock lock(mutex_);
    while (failure_.ok() && Now() < until) changed_.WaitUntil(mutex_, until);
    return failure_;
  }
  absl::Status AwaitEnds(TimePoint until) {
    MutexLock lock(mutex_);
    while (left_ > 0 && Now() < until) changed_.WaitUntil(mutex_, until);
    if (left_ > 0) failure_.Update(absl::DeadlineExceededError(absl::StrCat(left_, " members did not end")));
    return failure_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int left_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

MemberSessionOptions SessionOptions(const Job& job, const std::string& chief, Role role, const std::string& name) {
  MemberSessionOptions options;
  options.chief_address = chief;
  options.spec_hash = job.experiment.spec_hash;
  options.join.role = role;
  options.join.name = name;
  options.join.nonce = std::hash<std::string>()(name);
  options.join.experiment_json = job.experiment.canonical_json;
  return options;
}

// A server that has whatever is said to be staged, and applies in no time.
class Server {
 public:
  Server(const Job& job, const std::string& chief, Transport& transport, Watch& watch)
      : session_(Options(job, chief), transport, Clock::Real(),
                 {[this](const Message& message) { OnMessage(message); },
                  [&watch](const absl::Status& status) { watch.Ended("ps:0", status); }}) {
    session_.Start();
  }

  Version version() const {
    MutexLock lock(mutex_);
    return version_;
  }
  std::int64_t decisions() const {
    MutexLock lock(mutex_);
    return decisions_;
  }
  void Stage(UpdateId update, std::int64_t samples, Version computed_on) {
    MutexLock lock(mutex_);  // what is said keeps the order of what happens
    staged_.insert(update);
    Say(Staged{.update = update, .samples = samples, .loss_sum = 0, .computed_on = computed_on});
    if (const auto found = set_of_.find(update); found != set_of_.end()) TrySeal(found->second);
  }

 private:
  static MemberSessionOptions Options(const Job& job, const std::string& chief) {
    MemberSessionOptions options = SessionOptions(job, chief, Role::kPs, "ps:0");
    options.join.index = 0;
    options.join.address = "127.0.0.1:1";  // nobody connects
    return options;
  }

  void OnMessage(const Message& message) {
    if (std::holds_alternative<JobEnd>(message.body)) return session_.Leave("the job has ended", kPatience);
    MutexLock lock(mutex_);
    if (const auto* configure = std::get_if<Configure>(&message.body)) {
      version_ = configure->version;
      Say(Configured{configure->server, configure->version, kFeatures + 1});
    }
    if (const auto* members = std::get_if<Members>(&message.body)) Say(MembersAck{members->epoch});
    if (const auto* seal = std::get_if<Seal>(&message.body)) {
      for (const UpdateId& update : seal->updates) set_of_[update] = seal->set;
      seals_[seal->set] = *seal;
      TrySeal(seal->set);
    }
    if (const auto* drop = std::get_if<Drop>(&message.body)) {
      for (const UpdateId& update : drop->updates) Forget(update);
    }
    if (const auto* decision = std::get_if<Decision>(&message.body)) {
      for (const CommittedUpdate& update : decision->updates) Forget(update.update);
      seals_.erase(decision->set);
      version_ = decision->version;
      ++decisions_;
      Say(Applied{decision->version, decision->hash, 0});
    }
    if (const auto* snapshot = std::get_if<Snapshot>(&message.body)) {
      Say(SnapshotDone{.version = snapshot->version, .file = snapshot->file, .bytes = 1, .crc32c = 1});
    }
  }
  void Say(Body body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { (void)session_.Send(std::move(body)); }
  void TrySeal(SetNumber set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Seal& seal = seals_.at(set);
    const bool complete =
        std::all_of(seal.updates.begin(), seal.updates.end(),
                    [this](const UpdateId& update) ABSL_NO_THREAD_SAFETY_ANALYSIS { return staged_.contains(update); });
    if (complete) Say(Sealed{set, seal.attempt, {}});
  }
  void Forget(const UpdateId& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    staged_.erase(update);
    set_of_.erase(update);
  }

  mutable Mutex mutex_;
  Version version_ ABSL_GUARDED_BY(mutex_);
  std::int64_t decisions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<UpdateId> staged_ ABSL_GUARDED_BY(mutex_);
  std::map<UpdateId, SetNumber> set_of_ ABSL_GUARDED_BY(mutex_);
  std::map<SetNumber, Seal> seals_ ABSL_GUARDED_BY(mutex_);
  MemberSession session_;  // last: its callbacks use the others
};

// Sleeps for each ticket, then says that it has computed, and the server that it has the update.
class Worker {
 public:
  Worker(const Job& job, const std::string& chief, int index, Transport& transport, Server& server, Timer& timer,
         Watch& watch)
      : compute_(job.compute),
        server_(server),
        timer_(timer),
        rng_(static_cast<std::uint64_t>(index)),
        session_(
            Options(job, chief, index), transport, Clock::Real(),
            {[this](const Message& message) { OnMessage(message); },
             [&watch, index](const absl::Status& status) { watch.Ended(absl::StrCat("worker:", index), status); }}) {
    session_.Start();
  }

 private:
  static MemberSessionOptions Options(const Job& job, const std::string& chief, int index) {
    MemberSessionOptions options = SessionOptions(job, chief, Role::kWorker, absl::StrCat("worker:", index));
    options.join.index = index;
    options.join.samples = 1'000'000;
    options.join.data_fingerprint = "0123456789abcdef";
    TensorSpec weights;
    weights.name = "dense_0/weight";
    weights.shape = Shape{kFeatures, 1};
    options.join.tensors = {weights};
    return options;
  }

  void OnMessage(const Message& message) {
    if (std::holds_alternative<Welcome>(message.body)) (void)session_.Send(Ready{});
    if (std::holds_alternative<JobEnd>(message.body)) session_.Leave("the job has ended", kPatience);
    if (const auto* ticket = std::get_if<Ticket>(&message.body)) {
      next_ = *ticket;
      if (ticket->bound) Compute();
    }
    if (const auto* bind = std::get_if<Bind>(&message.body); bind != nullptr && bind->update == next_.update) Compute();
  }
  void Compute() {
    const double seconds = ToSeconds(compute_) * (0.8 + 0.4 * rng_.NextDouble());
    auto computed = [this, update = next_.update, samples = TotalSize(next_.positions), version = server_.version(),
                     seconds] {
      (void)session_.Send(StepReport{.update = update, .samples = samples, .compute_seconds = seconds});
      server_.Stage(update, samples, version);
    };
    timer_.At(Now() + FromSeconds(seconds), std::move(computed));
  }

  const Duration compute_;
  Server& server_;
  Timer& timer_;
  Rng rng_;
  Ticket next_;
  MemberSession session_;  // last: its callbacks use the others
};

// Says when the measurement begins, then how many commits there were in how many seconds; stays until the line ends.
absl::Status ServeMembers(const Job& job, const std::string& chief, Line& line) {
  const std::unique_ptr<Transport> transport = MakeTransport({});
  Watch watch(job.workers + 1);
  Server server(job, chief, *transport, watch);
  std::vector<std::unique_ptr<Worker>> workers;
  Timer timer;
  for (int i = 0; i < job.workers; ++i) {
    workers.push_back(std::make_unique<Worker>(job, chief, i, *transport, server, timer, watch));
  }
  while (server.decisions() == 0) {
    EK_RETURN_IF_ERROR(watch.Pause(Now() + std::chrono::milliseconds(10)));
  }
  EK_RETURN_IF_ERROR(watch.Pause(Now() + FromSeconds(job.seconds / 4)));
  EK_RETURN_IF_ERROR(line.Send("+", Now() + kPatience));
  const TimePoint begin = Now();
  const std::int64_t before = server.decisions();
  EK_RETURN_IF_ERROR(watch.Pause(begin + FromSeconds(job.seconds)));
  const std::int64_t commits = server.decisions() - before;
  const nlohmann::json result{{"commits", commits}, {"seconds", ToSeconds(Now() - begin)}};
  EK_RETURN_IF_ERROR(line.Send(absl::StrCat("+", result.dump()), Now() + kPatience));
  return watch.AwaitEnds(Now() + kPatience);
}

// --- the measurement ------------------------------------------------------------------------------------------------

absl::StatusOr<nlohmann::json> Measure(const Job& job) {
  const TimePoint deadline = Now() + kPatience + FromSeconds(2 * job.seconds);
  EK_ASSIGN_OR_RETURN(std::unique_ptr<Process> chief,
                      Process::Start("chief", [&](Line& line) { return ServeChief(job, line); }));
  EK_ASSIGN_OR_RETURN(const std::string port, chief->Receive(deadline));
  EK_ASSIGN_OR_RETURN(const std::unique_ptr<Process> members, Process::Start("members", [&](Line& line) {
                        return ServeMembers(job, absl::StrCat("127.0.0.1:", port), line);
                      }));
  const auto cpu_seconds = [&]() -> absl::StatusOr<double> {
    EK_RETURN_IF_ERROR(chief->Send("cpu", deadline));
    EK_ASSIGN_OR_RETURN(const std::string seconds, chief->Receive(deadline));
    return std::strtod(seconds.c_str(), nullptr);
  };
  EK_RETURN_IF_ERROR(members->Receive(deadline).status());
  EK_ASSIGN_OR_RETURN(const double before, cpu_seconds());
  EK_ASSIGN_OR_RETURN(const std::string answer, members->Receive(deadline));
  EK_ASSIGN_OR_RETURN(const double after, cpu_seconds());
  nlohmann::json result = nlohmann::json::parse(answer);
  const auto commits = result["commits"].get<double>();
  if (commits == 0) return absl::InternalError("nothing was committed");
  result["commits_per_second"] = commits / result["seconds"].get<double>();
  result["chief_cpu_seconds_per_commit"] = (after - before) / commits;
  chief.reset();  // tells it to stop; the members hear of it
  return result;
}

}  // namespace
}  // namespace evenkeel::bench

int main(int argc, char** argv) {
  using namespace evenkeel;
  bench::Options options("coordination",
                         "commits of a chief with the connections of many workers whose computing is sleep",
                         {{"workers", "2,16,64", "connections"},
                          {"mode", "asp", "bsp, asp or ssp"},
                          {"compute-us", "2000", "that a step sleeps, a fifth more or less"},
                          {"seconds", "5", "of each measurement"},
                          {"json", "", "file for the table"}});
  options.Parse(argc, argv);
  const std::string mode = options.Text("mode");
  if (mode != "bsp" && mode != "asp" && mode != "ssp")
    options.Refuse("--mode is '" + mode + "'; bsp, asp or ssp is wanted");
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%7s %5s %12s %10s %22s\n", "workers", "mode", "compute", "commits/s", "chief's CPU a commit");
  for (const std::int64_t workers : options.Numbers("workers", 1, 1024)) {
    std::string folder = (std::filesystem::temp_directory_path() / "evenkeel_coordination_XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) options.Refuse("cannot make the folder " + folder);
    bench::Job job;
    job.model_dir = folder;
    job.workers = static_cast<int>(workers);
    job.compute = std::chrono::microseconds(options.Number("compute-us", 0, 60'000'000));
    job.seconds = static_cast<double>(options.Number("seconds", 1, 3600));
    absl::StatusOr<nlohmann::json> row = [&]() -> absl::StatusOr<nlohmann::json> {
      EK_ASSIGN_OR_RETURN(job.experiment, bench::MakeExperiment(mode, job.workers));
      return bench::Measure(job);
    }();
    std::filesystem::remove_all(folder);
    if (!row.ok()) {
      std::fprintf(stderr, "coordination: %s\n", std::string(row.status().message()).c_str());
      return 1;
    }
    (*row)["workers"] = workers;
    (*row)["mode"] = mode;
    std::printf("%7lld %5s %9lld us %10.0f %19.0f us\n", static_cast<long long>(workers), mode.c_str(),
                static_cast<long long>(options.Number("compute-us", 0, 60'000'000)),
                (*row)["commits_per_second"].get<double>(), 1e6 * (*row)["chief_cpu_seconds_per_commit"].get<double>());
    std::fflush(stdout);
    rows.push_back(*std::move(row));
  }
  options.WriteJson(rows);
  return 0;
}
