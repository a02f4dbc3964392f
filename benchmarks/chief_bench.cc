// What an update costs the chief, with 8 to 2,000 workers: the pure state machine alone, among servers and workers
// that answer at once and compute nothing. Prints the CPU time of an update from its ticket to its commit, everything
// that members say for it included, and its ratio to that with 8 workers.
//
//   chief_bench [updates]    each line takes so many (40,000), at least three steps of all workers
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/chief/chief.h"

namespace evenkeel {
namespace {

constexpr std::uint32_t kServers = 2;
const char* kExperiment = R"({
  "name": "bench",
  "model": {"layers": [{"dense": {"units": 1}}], "loss": "mse"},
  "input": {"train": {"csv": {"files": ["x.csv"], "label": "y"}}}
})";

ChiefOptions MakeOptions(const std::string& mode, std::int64_t workers) {
  const auto experiment = ParseExperiment(
      kExperiment, "the benchmark's experiment",
      {absl::StrCat("train.sync.mode=", mode), "train.epochs=1000000",
       absl::StrCat("train.global_batch_size=", 32 * workers), absl::StrCat("membership.workers_max=", workers),
       absl::StrCat("membership.workers_min=", workers), "membership.lease_ms=600000"});
  if (!experiment.ok()) {
    std::fprintf(stderr, "chief_bench: %s\n", std::string(experiment.status().message()).c_str());
    std::exit(1);
  }
  ChiefOptions options;
  options.new_job_id = "00000000000000000000000000000001";
  options.term = Term(1);
  options.experiment = *experiment;
  options.model_dir = "model";
  options.servers = kServers;
  return options;
}

// The chief and all whom it talks to. Streams 1 to kServers are the servers', those above are the workers'.
class Job {
 public:
  Job(const std::string& mode, std::int64_t workers) : options_(MakeOptions(mode, workers)), chief_(options_) {
    Take(chief_.Start(now_, 0));
    for (std::uint32_t i = 0; i < kServers; ++i) Say(SessionId(i + 1), MakeJoin(Role::kPs, absl::StrCat("ps:", i)));
    for (std::int64_t i = 0; i < workers; ++i) {
      Say(SessionId(kServers + 1 + static_cast<std::uint64_t>(i)), MakeJoin(Role::kWorker, absl::StrCat("worker:", i)));
    }
  }

  // False where nothing is left to happen before so many are committed.
  bool RunUntil(std::int64_t updates) {
    while (updates_ < updates && !inbox_.empty()) {
      auto [session, message] = std::move(inbox_.front());
      inbox_.pop_front();
      now_ += std::chrono::microseconds(1);
      ++messages_;
      Take(chief_.OnMessage(session, std::move(message), now_));
      if (now_ >= chief_.NextDeadline()) Take(chief_.Tick(now_));
    }
    return updates_ >= updates;
  }

  std::int64_t updates() const { return updates_; }
  std::int64_t messages() const { return messages_; }

 private:
  struct AwaitedSet {
    std::uint32_t attempt = 0;
    std::size_t missing = 0;
  };

  static bool IsServer(SessionId session) { return session.value() <= kServers; }

  Join MakeJoin(Role role, std::string name) {
    Join join;
    join.role = role;
    join.name = std::move(name);
    join.nonce = ++last_nonce_;
    join.address = join.name;
    join.samples = 1'281'167;
    join.data_fingerprint = "0123456789abcdef";
    join.experiment_json = options_.experiment.canonical_json;
    TensorSpec tensor;
    tensor.name = "dense_0/weight";
    tensor.shape = Shape{1024, 1};
    join.tensors = {tensor};
    return join;
  }

  void Say(SessionId session, Body body) {
    Message message;
    message.envelope = envelope_;
    message.envelope.sender = incarnations_[session];
    message.body = std::move(body);
    inbox_.emplace_back(session, std::move(message));
  }

  void Take(ChiefActions actions) {
    for (ChiefAction& action : actions) {
      if (auto* send = std::get_if<SendAction>(&action)) {
        envelope_ = send->message.envelope;
        IsServer(send->session) ? ServerHears(send->session, send->message.body)
                                : WorkerHears(send->session, send->message.body);
      } else if (auto* write = std::get_if<WriteManifestAction>(&action)) {
        manifests_.push_back(write->manifest.version);
      } else if (const auto* append = std::get_if<AppendLogAction>(&action)) {
        const auto* commit = std::get_if<CommitRecord>(&append->record);
        if (commit != nullptr) updates_ += static_cast<std::int64_t>(commit->decision.updates.size());
      }
    }
    // Staged only now: each server has heard of its set.
    for (auto& [session, ticket] : std::exchange(bound_, {})) Stage(session, ticket);
    for (const Version& version : std::exchange(manifests_, {})) {
      Take(chief_.OnManifestWritten(version, absl::OkStatus(), now_));
    }
  }

  void ServerHears(SessionId session, const Body& body) {
    if (const auto* welcome = std::get_if<Welcome>(&body)) {
      incarnations_[session] = welcome->incarnation;
    } else if (const auto* configure = std::get_if<Configure>(&body)) {
      Say(session, Configured{configure->server, configure->version, 512});
    } else if (const auto* members = std::get_if<Members>(&body)) {
      Say(session, MembersAck{members->epoch});
    } else if (const auto* seal = std::get_if<Seal>(&body)) {
      sets_[{session, seal->set}] = AwaitedSet{seal->attempt, seal->updates.size()};
      for (const UpdateId& update : seal->updates) set_of_[update] = seal->set;
    } else if (const auto* decision = std::get_if<Decision>(&body)) {
      sets_.erase({session, decision->set});
      for (const CommittedUpdate& update : decision->updates) set_of_.erase(update.update);
      Say(session, Applied{decision->version, decision->hash, 0.001});
    } else if (const auto* snapshot = std::get_if<Snapshot>(&body)) {
      Say(session, SnapshotDone{snapshot->version, snapshot->file, 100, 0, ""});
    }
  }

  void WorkerHears(SessionId session, const Body& body) {
    if (const auto* welcome = std::get_if<Welcome>(&body)) {
      incarnations_[session] = welcome->incarnation;
      Say(session, Ready{});
    } else if (const auto* ticket = std::get_if<Ticket>(&body)) {
      if (ticket->bound) {
        bound_.emplace_back(session, *ticket);
      } else {
        ahead_.insert_or_assign(session, *ticket);
      }
    } else if (const auto* bind = std::get_if<Bind>(&body)) {
      Ticket ticket = ahead_.at(session);
      ticket.version = bind->version;
      bound_.emplace_back(session, std::move(ticket));
    }
  }

  void Stage(SessionId worker, const Ticket& ticket) {
    const SetNumber set = set_of_.at(ticket.update);
    StepReport report;
    report.update = ticket.update;
    report.samples = TotalSize(ticket.positions);
    report.compute_seconds = 0.1;
    for (std::uint64_t server = 1; server <= kServers; ++server) {
      Say(SessionId(server), Staged{ticket.update, report.samples, 1, 0, "", ticket.version});
      AwaitedSet& awaited = sets_.at({SessionId(server), set});
      if (--awaited.missing == 0) Say(SessionId(server), Sealed{set, awaited.attempt, {}});
    }
    Say(worker, report);
  }

  const ChiefOptions options_;
  Chief chief_;
  TimePoint now_{std::chrono::seconds(100)};
  Envelope envelope_{.spec_hash = options_.experiment.spec_hash};
  std::uint64_t last_nonce_ = 0;
  std::map<SessionId, Incarnation> incarnations_;
  std::deque<std::pair<SessionId, Message>> inbox_;
  std::vector<std::pair<SessionId, Ticket>> bound_;
  std::map<SessionId, Ticket> ahead_;
  std::vector<Version> manifests_;
  std::map<std::pair<SessionId, SetNumber>, AwaitedSet> sets_;
  std::map<UpdateId, SetNumber> set_of_;
  std::int64_t updates_ = 0, messages_ = 0;
};

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int Main(std::int64_t updates) {
  std::printf("%-5s %8s %10s %12s %12s %12s %10s\n", "mode", "workers", "updates", "us/update", "updates/s",
              "messages/s", "to 8");
  for (const char* mode : {"bsp", "asp", "ssp"}) {
    double first = 0;
    for (std::int64_t workers : {8, 64, 512, 2000}) {
      Job job(mode, workers);
      bool runs = job.RunUntil(2 * workers);  // all are there
      const std::int64_t before = job.updates(), messages_before = job.messages();
      const double start = CpuSeconds();
      runs = runs && job.RunUntil(before + std::max(updates, 3 * workers));
      const double seconds = CpuSeconds() - start;
      if (!runs) {
        std::fprintf(stderr, "chief_bench: %s with %lld workers stands still after %lld updates\n", mode,
                     static_cast<long long>(workers), static_cast<long long>(job.updates()));
        return 1;
      }
      const auto done = static_cast<double>(job.updates() - before);
      const double each = seconds / done;
      if (first == 0) first = each;
      std::printf("%-5s %8lld %10.0f %12.2f %12.0f %12.0f %9.2fx\n", mode, static_cast<long long>(workers), done,
                  1e6 * each, 1 / each, static_cast<double>(job.messages() - messages_before) / seconds, each / first);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
  const long long updates = argc > 1 ? std::atoll(argv[1]) : 40'000;
  if (updates > 0) return evenkeel::Main(updates);
  std::fprintf(stderr, "chief_bench: '%s' is no number of updates; one above 0 is\n", argv[1]);
  return 2;
}
