// The data path alone: W worker processes push a gradient each, the servers sum them and apply SGD with momentum, every
// worker has the new parameters. The servers are real; this program plays their chief. Beside it, in turn, the same
// bytes over raw TCP. What the parameters must be is checked after each burst of rounds.
//
//   evenkeel bench push-pull -- --sizes 4K,1M --transport grpc        --help lists the options
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench_process.h"
#include "bench_support.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "push_pull_job.h"
#include "raw_tcp.h"

namespace evenkeel::bench {
namespace {

const std::vector<std::string> kOptions{"sizes",  "transport", "op",        "workers",   "servers", "threads", "bucket",
                                        "rounds", "seconds",   "intervals", "timeout_s", "json",    "hops"};
const std::vector<std::string> kOperations{"push", "push-pull"};  // as Operation counts them

using Processes = std::vector<std::unique_ptr<Process>>;

// Of one way; workers go before the servers.
struct Group {
  Processes servers, workers;
  HopBoard* board = nullptr;
  Group() = default;
  Group(Group&&) = default;
  ~Group() {
    workers.clear();
    servers.clear();
  }
};

TimePoint After(Duration duration) { return Clock::Real().Now() + duration; }

absl::Status AwaitReady(Processes& processes, Duration timeout) {
  for (const auto& process : processes) {
    EK_RETURN_IF_ERROR(Annotate(process->Receive(After(timeout)).status(), absl::StrCat("[", process->name(), "]")));
  }
  return absl::OkStatus();
}

absl::StatusOr<Group> StartRawTcp(const Options& options, std::int64_t size) {
  Group group;
  EK_ASSIGN_OR_RETURN(auto server,
                      Process::Start("raw tcp server", [&](Line& line) { return ServeRawTcp(line, options.timeout); }));
  group.servers.push_back(std::move(server));
  EK_ASSIGN_OR_RETURN(const std::string told, group.servers[0]->Receive(After(options.timeout)));
  int port = 0;
  EK_CHECK(absl::SimpleAtoi(told, &port));
  for (int w = 0; w < options.workers; ++w) {
    EK_ASSIGN_OR_RETURN(
        auto worker, Process::Start(absl::StrCat("raw tcp worker ", w), [&](Line& line) {
          return RunRawTcpClient(line, port, options.servers, {{size, 0}, {size, size}}, options.timeout);
        }));
    group.workers.push_back(std::move(worker));
  }
  EK_RETURN_IF_ERROR(AwaitReady(group.workers, options.timeout));
  return group;
}

absl::StatusOr<Group> StartJob(const Options& options, const std::string& transport, std::int64_t size) {
  Group group;
  if (options.hops) {
    EK_ASSIGN_OR_RETURN(group.board, HopBoard::Create());
  }
  const PushPullJob job{.transport = transport,
                        .bytes = size,
                        .bucket_bytes = options.bucket_bytes,
                        .workers = options.workers,
                        .servers = options.servers,
                        .threads = options.threads,
                        .timeout = options.timeout,
                        .board = group.board};
  std::vector<std::string> addresses;
  for (int s = 0; s < options.servers; ++s) {
    EK_ASSIGN_OR_RETURN(auto server, Process::Start(absl::StrCat("ps:", s),
                                                    [&](Line& line) { return RunPushPullServer(job, s, line); }));
    group.servers.push_back(std::move(server));
  }
  for (const auto& server : group.servers) {
    EK_ASSIGN_OR_RETURN(std::string address, server->Receive(After(options.timeout)));
    addresses.push_back(std::move(address));
  }
  for (int w = 0; w < options.workers; ++w) {
    EK_ASSIGN_OR_RETURN(auto worker, Process::Start(absl::StrCat("worker:", w), [&](Line& line) {
                          return RunPushPullWorker(job, w, addresses, line);
                        }));
    group.workers.push_back(std::move(worker));
  }
  EK_RETURN_IF_ERROR(AwaitReady(group.workers, options.timeout));
  return group;
}

std::uint32_t OperationNumber(const std::string& name) { return name == "push" ? 0 : 1; }

Side MakeSide(const std::string& name, const std::string& operation, std::int64_t size, const Group& group) {
  return Side{
      .name = name,
      .operation = operation,
      .bytes = size,
      .run = [&group, number = OperationNumber(operation)](std::int64_t warm, std::int64_t rounds, Duration limit) {
        return RunBurst(group.workers,
                        Burst{number, static_cast<std::uint32_t>(warm), static_cast<std::uint32_t>(rounds)}, limit);
      }};
}

void PrintHops(const std::string& transport, std::int64_t size, const HopBoard& board) {
  std::printf("\n%s, %s: median time at which a round passes, of %zu rounds\n", transport.c_str(),
              SizeText(size).c_str(), board.rounds());
  for (std::size_t i = 0; i < static_cast<std::size_t>(Station::kCount); ++i) {
    const auto station = static_cast<Station>(i);
    const double at = board.Median(station);
    if (at >= 0) std::printf("  %10.1f us  %s\n", at * 1e6, NameOf(station));
  }
  std::printf("\n");
}

absl::StatusOr<std::vector<Result>> MeasureSize(const Options& options, std::int64_t size) {
  std::vector<Group> groups;
  groups.reserve(options.transports.size() + 1);
  EK_ASSIGN_OR_RETURN(Group raw, StartRawTcp(options, size));
  groups.push_back(std::move(raw));
  for (const std::string& transport : options.transports) {
    EK_ASSIGN_OR_RETURN(Group job, StartJob(options, transport, size));
    groups.push_back(std::move(job));
  }
  std::vector<Side> sides;
  std::vector<std::size_t> yardstick_of;
  for (const std::string& operation : options.operations) {
    const std::size_t yardstick = sides.size();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      sides.push_back(MakeSide(g == 0 ? "raw tcp" : options.transports[g - 1], operation, size, groups[g]));
      yardstick_of.push_back(yardstick);
    }
  }
  EK_ASSIGN_OR_RETURN(std::vector<Result> results, MeasureInTurn(sides, yardstick_of, options));
  for (const Result& result : results) PrintTableLine(size, result);
  for (std::size_t g = 1; g < groups.size(); ++g) {
    if (groups[g].board != nullptr) PrintHops(options.transports[g - 1], size, *groups[g].board);
  }
  return results;
}

absl::Status Run(const Options& options) {
  std::printf("workers %d, servers %d, threads %d, bucket %s; GB/s count the bytes of a round once\n", options.workers,
              options.servers, options.threads, SizeText(options.bucket_bytes).c_str());
  PrintTableHead();
  std::vector<std::pair<std::int64_t, Result>> all;
  for (std::int64_t size : options.sizes) {
    EK_ASSIGN_OR_RETURN(std::vector<Result> results, MeasureSize(options, size));
    for (Result& result : results) all.emplace_back(size, std::move(result));
  }
  return options.json.empty() ? absl::OkStatus() : WriteJson("push-pull", options, all);
}

}  // namespace
}  // namespace evenkeel::bench

int main(int argc, char** argv) {
  using namespace evenkeel;  // NOLINT
  TuneAllocator();
  InitLog("push-pull", LogLevel::kWarning);
  const bench::Options defaults{.operations = bench::kOperations};
  const auto options = bench::ParseOptions(std::vector<std::string>(argv + 1, argv + argc), bench::kOptions, defaults);
  if (!options.ok()) {
    std::fprintf(stderr, "push-pull: %s\n", std::string(options.status().message()).c_str());
    return static_cast<int>(ExitCode::kWrongInput);
  }
  if (options->help) {
    std::printf("A round of gradients to the servers and parameters back, beside raw TCP.\n%s",
                bench::DescribeOptions(bench::kOptions, defaults).c_str());
    return 0;
  }
  const absl::Status status = bench::Run(*options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "push-pull: %s\n", std::string(status.message()).c_str());
  return static_cast<int>(ExitCodeFor(status));
}
