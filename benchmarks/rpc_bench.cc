// Messages over the transport under test, beside raw TCP in turn: the round trip of one message with a payload that is
// answered without one, and the rate of a stream of such messages, the last of which is answered. Payloads are copied
// out into memory of the receiver's, as a server does.
//
//   evenkeel bench rpc -- --sizes 64,4K,1M        --help lists the options
#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench_process.h"
#include "bench_support.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/status.h"
#include "raw_tcp.h"

namespace evenkeel::bench {
namespace {

const std::vector<std::string> kOptions{"sizes",   "transport", "op",        "rounds",
                                        "seconds", "intervals", "timeout_s", "json"};
const std::vector<std::string> kOperations{"rtt", "stream"};
constexpr std::int64_t kStreamBytes = 64 << 20;  // of a round of "stream", about
constexpr std::int64_t kMostMessages = 4096;     // likewise
constexpr std::int64_t kLargestMessage = 32 << 20;

std::int64_t MessagesOf(const std::string& operation, std::int64_t size) {
  return operation == "rtt" ? 1 : std::clamp<std::int64_t>(kStreamBytes / size, 4, kMostMessages);
}

// Copies payloads out; answers those that say so.
class Answerer final : public StreamHandler {
 public:
  Answerer(std::shared_ptr<Stream> stream, std::span<std::byte> memory) : stream_(std::move(stream)), memory_(memory) {}
  std::span<std::byte> Destination(Stream&, const Message&, std::size_t payload_bytes) override {
    return payload_bytes <= memory_.size() ? memory_.first(payload_bytes) : std::span<std::byte>();
  }
  void OnMessage(Stream&, Message message, const PayloadIn& payload) override {
    if (payload.size() > memory_.size() || !payload.CopyTo(memory_.first(payload.size()))) return;
    const auto* stage = std::get_if<Stage>(&message.body);
    if (stage == nullptr || !stage->closing) return;
    (void)stream_->Send(Message{message.envelope, StageAck{.update = stage->update, .complete = true}});
  }
  void OnClosed(Stream&, const absl::Status&) override {}

 private:
  const std::shared_ptr<Stream> stream_;
  const std::span<std::byte> memory_;
};

absl::Status Serve(const std::string& name, std::int64_t size, Duration timeout, Line& line) {
  EK_ASSIGN_OR_RETURN(const Arena memory, Arena::Allocate(static_cast<std::size_t>(size)));
  const std::unique_ptr<Transport> transport = MakeBenchTransport(name);
  EK_ASSIGN_OR_RETURN(const std::unique_ptr<Listener> listener,
                      transport->Listen(Service::kParameterServer, "127.0.0.1:0", [&](std::shared_ptr<Stream> stream) {
                        return std::make_shared<Answerer>(std::move(stream), std::span(memory.data(), memory.size()));
                      }));
  EK_RETURN_IF_ERROR(line.Send(absl::StrCat("+127.0.0.1:", listener->port()), Clock::Real().Now() + timeout));
  (void)line.Receive(kNever);
  listener->Shutdown(std::chrono::milliseconds(200));
  return absl::OkStatus();
}

class Caller final : public StreamHandler {
 public:
  void OnMessage(Stream&, Message message, const PayloadIn&) override {
    const auto* ack = std::get_if<StageAck>(&message.body);
    if (ack == nullptr) return;
    MutexLock lock(mutex_);
    answered_ = ack->update.sequence;
    changed_.NotifyAll();
  }
  void OnClosed(Stream&, const absl::Status& status) override {
    MutexLock lock(mutex_);
    failure_.Update(absl::UnavailableError(absl::StrCat("the stream ended: ", status.message())));
    changed_.NotifyAll();
  }
  absl::Status Await(std::uint64_t sequence, Duration timeout) {
    const TimePoint deadline = Clock::Real().Now() + timeout;
    MutexLock lock(mutex_);
    while (failure_.ok() && answered_ != sequence) {
      if (!changed_.WaitUntil(mutex_, deadline) && answered_ != sequence) {
        return absl::DeadlineExceededError(absl::StrCat("waited ", ToSeconds(timeout), " s for the server's answer"));
      }
    }
    return failure_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::uint64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Call(const std::string& name, const std::string& address, std::int64_t size, Duration timeout,
                  Line& line) {
  EK_ASSIGN_OR_RETURN(Arena arena, Arena::Allocate(static_cast<std::size_t>(size), MemoryKind::kShared));
  const auto memory = std::make_shared<const Arena>(std::move(arena));
  const auto caller = std::make_shared<Caller>();
  const std::unique_ptr<Transport> transport = MakeBenchTransport(name);
  const std::shared_ptr<Stream> stream = transport->Connect(Service::kParameterServer, address, caller, timeout);
  const Envelope envelope{.job_id = std::string(32, 'b'), .spec_hash = std::string(64, 'b'), .term = Term(1)};
  std::uint64_t sequence = 0;
  auto round = [&](std::int64_t messages) -> absl::Status {
    ++sequence;
    for (std::int64_t i = 1; i <= messages; ++i) {
      EK_RETURN_IF_ERROR(stream->Send(
          Message{envelope, Stage{.update = UpdateId{Term(1), Incarnation(1), sequence}, .closing = i == messages}},
          PayloadOut{std::span<const std::byte>(memory->data(), memory->size()), memory}));
    }
    return caller->Await(sequence, timeout);
  };
  const absl::Status served =
      ServeBursts(line, timeout, [&](const Burst& burst) -> absl::StatusOr<std::vector<double>> {
        std::vector<double> times;
        const std::int64_t messages = MessagesOf(kOperations[burst.operation], size);
        for (std::uint32_t i = 0; i < burst.warm + burst.rounds; ++i) {
          const TimePoint begin = Clock::Real().Now();
          EK_RETURN_IF_ERROR(round(messages));
          if (i >= burst.warm) times.push_back(ToSeconds(Clock::Real().Now() - begin));
        }
        return times;
      });
  stream->Close();
  return served;
}

// A server and the one that calls it; the caller goes first.
struct Pair {
  std::unique_ptr<Process> server, caller;
};

absl::StatusOr<Pair> StartPair(const std::string& name, std::function<absl::Status(Line&)> serve,
                               std::function<absl::Status(const std::string&, Line&)> call, Duration timeout) {
  Pair pair;
  EK_ASSIGN_OR_RETURN(pair.server, Process::Start(absl::StrCat(name, " server"), std::move(serve)));
  EK_ASSIGN_OR_RETURN(const std::string told, pair.server->Receive(Clock::Real().Now() + timeout));
  EK_ASSIGN_OR_RETURN(pair.caller,
                      Process::Start(absl::StrCat(name, " caller"), [&](Line& line) { return call(told, line); }));
  EK_RETURN_IF_ERROR(pair.caller->Receive(Clock::Real().Now() + timeout).status());
  return pair;
}

absl::StatusOr<std::vector<Result>> MeasureSize(const Options& options, std::int64_t size) {
  std::vector<Pair> pairs;
  std::vector<std::string> names{"raw tcp"};
  EK_ASSIGN_OR_RETURN(
      Pair raw,
      StartPair(
          names[0], [&](Line& line) { return ServeRawTcp(line, options.timeout); },
          [&](const std::string& told, Line& line) {
            int port = 0;
            EK_CHECK(absl::SimpleAtoi(told, &port));
            return RunRawTcpClient(line, port, 1, {{size, 0}, {size * MessagesOf("stream", size), 0}}, options.timeout);
          },
          options.timeout));
  pairs.push_back(std::move(raw));
  for (const std::string& name : options.transports) {
    EK_ASSIGN_OR_RETURN(Pair pair, StartPair(
                                       name, [&](Line& line) { return Serve(name, size, options.timeout, line); },
                                       [&](const std::string& told, Line& line) {
                                         return Call(name, told, size, options.timeout, line);
                                       },
                                       options.timeout));
    pairs.push_back(std::move(pair));
    names.push_back(name);
  }
  std::vector<std::vector<std::unique_ptr<Process>>> callers(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) callers[i].push_back(std::move(pairs[i].caller));
  std::vector<Side> sides;
  std::vector<std::size_t> yardstick_of;
  for (const std::string& operation : options.operations) {
    const std::size_t yardstick = sides.size();
    const std::uint32_t number = operation == "rtt" ? 0 : 1;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      sides.push_back(Side{
          .name = names[i],
          .operation = operation,
          .bytes = size * MessagesOf(operation, size),
          .run = [&callers, i, number](std::int64_t warm, std::int64_t rounds, Duration limit) {
            return RunBurst(callers[i],
                            Burst{number, static_cast<std::uint32_t>(warm), static_cast<std::uint32_t>(rounds)}, limit);
          }});
      yardstick_of.push_back(yardstick);
    }
  }
  EK_ASSIGN_OR_RETURN(std::vector<Result> results, MeasureInTurn(sides, yardstick_of, options));
  callers.clear();  // before the servers
  for (const Result& result : results) PrintTableLine(size, result);
  return results;
}

absl::Status Run(const Options& options) {
  for (std::int64_t size : options.sizes) {
    if (size > kLargestMessage) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sizes names ", SizeText(size), "; a message has at most ", SizeText(kLargestMessage)));
    }
  }
  std::printf("rtt: one message there, a small one back; stream: so many that they have about %s, one answer\n",
              SizeText(kStreamBytes).c_str());
  PrintTableHead();
  std::vector<std::pair<std::int64_t, Result>> all;
  for (std::int64_t size : options.sizes) {
    EK_ASSIGN_OR_RETURN(std::vector<Result> results, MeasureSize(options, size));
    for (Result& result : results) all.emplace_back(size, std::move(result));
  }
  return options.json.empty() ? absl::OkStatus() : WriteJson("rpc", options, all);
}

}  // namespace
}  // namespace evenkeel::bench

int main(int argc, char** argv) {
  using namespace evenkeel;  // NOLINT
  TuneAllocator();
  InitLog("rpc", LogLevel::kWarning);
  const bench::Options defaults{.sizes = {64, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20},
                                .operations = bench::kOperations};
  const auto options = bench::ParseOptions(std::vector<std::string>(argv + 1, argv + argc), bench::kOptions, defaults);
  if (!options.ok()) {
    std::fprintf(stderr, "rpc: %s\n", std::string(options.status().message()).c_str());
    return static_cast<int>(ExitCode::kWrongInput);
  }
  if (options->help) {
    std::printf("Messages and streams of messages over a transport, beside raw TCP.\n%s",
                bench::DescribeOptions(bench::kOptions, defaults).c_str());
    return 0;
  }
  const absl::Status status = bench::Run(*options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rpc: %s\n", std::string(status.message()).c_str());
  return static_cast<int>(ExitCodeFor(status));
}
