// Stripes fetched from scripted servers, over the in-process transport.
#include "runtime/state_fetch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <optional>

#include "evenkeel/transport/transports.h"

namespace evenkeel {
namespace {

constexpr Version kVersion{Generation(1), CommitNumber(5)};

std::vector<TensorSpec> Model() {
  std::vector<TensorSpec> tensors(1);
  tensors[0].name = "weight";
  tensors[0].shape = Shape{5000};
  return tensors;
}

std::shared_ptr<const ParameterLayout> Over(std::uint32_t servers) {
  return std::make_shared<const ParameterLayout>(*ParameterLayout::Create(Model(), 4096, servers));
}

// A server of the former layout; `answer` replaces what it says to a Fetch.
class Source final : public StreamHandler, public std::enable_shared_from_this<Source> {
 public:
  using Answer = std::function<void(Stream&, const Fetch&)>;
  explicit Source(Answer answer) : answer_(std::move(answer)) {}
  void OnMessage(Stream& stream, Message message, const PayloadIn&) override {
    if (std::holds_alternative<Hello>(message.body)) {
      (void)stream.Send({message.envelope, HelloAck{.server = ServerIndex(0), .version = kVersion}});
    } else if (const auto* fetch = std::get_if<Fetch>(&message.body)) {
      answer_(stream, *fetch);
    }
  }
  void OnClosed(Stream&, const absl::Status&) override {}

 private:
  const Answer answer_;
};

// The value of a float of an array: its place, and the array's number times a thousand.
float ValueOf(std::uint32_t array, std::int64_t at) { return static_cast<float>(at % 1000 + 1000 * array); }

void AnswerWell(Stream& stream, const Fetch& fetch) {
  auto floats = std::make_shared<std::vector<float>>();
  for (const PositionRange& range : fetch.ranges) {
    for (std::int64_t at = range.begin; at < range.end; ++at) floats->push_back(ValueOf(fetch.array, at));
  }
  const std::span<const float> all(*floats);
  (void)stream.Send({{}, FetchData{fetch.request, fetch.version}}, PayloadOut{std::as_bytes(all), std::move(floats)});
}

// One place of a layout of one server, fetched from two.
struct Transfer {
  explicit Transfer(Source::Answer second = AnswerWell) {
    Listen("a", AnswerWell);
    Listen("b", std::move(second));
  }
  void Listen(const std::string& address, Source::Answer answer) {
    auto listener = transport->Listen(Service::kParameterServer, address,
                                      [this, answer = std::move(answer)](std::shared_ptr<Stream> stream) {
                                        MutexLock lock(mutex);
                                        streams.push_back(std::move(stream));
                                        return std::make_shared<Source>(answer);
                                      });
    REQUIRE(listener.ok());
    listeners.push_back(*std::move(listener));
  }
  void Open() {
    ps::PreparePlace order;
    order.place = {Over(1), ServerIndex(0), optimizer};
    order.from = Over(2);
    order.sources = {ServerAddress{.address = "a", .name = "ps:0"}, ServerAddress{.address = "b", .name = "ps:1"}};
    shard = *ps::Shard::Create(order.place, pool);
    shard->BeginMove();
    fetch = std::make_shared<StateFetch>(shard, ps::Shard::PlanMove(*order.from, order.place), order, "ps:2",
                                         *transport, std::chrono::seconds(5));
    fetch->Open([this](const absl::Status& status) { Ended(status); });
  }
  void Fill() {
    {
      MutexLock lock(mutex);
      end.reset();
      ends = 0;
    }
    fetch->Fill(
        kVersion, [this](const absl::Status& status) { Ended(status); },
        [this] {
          MutexLock lock(mutex);
          ++arrived;
        });
  }
  void Start() {
    Open();
    REQUIRE(End().ok());
    Fill();
  }
  void Ended(const absl::Status& status) {
    MutexLock lock(mutex);
    end = status;
    ++ends;
    changed.NotifyAll();
  }
  absl::Status End() {
    const TimePoint deadline = Clock::Real().Now() + std::chrono::seconds(30);
    MutexLock lock(mutex);
    while (!end) {
      if (!changed.WaitUntil(mutex, deadline)) FAIL("the fetch does not end");
    }
    return *end;
  }
  ~Transfer() {
    if (fetch) fetch->Cancel();
    for (auto& listener : listeners) listener->Shutdown(std::chrono::seconds(1));
  }

  OptimizerSpec optimizer{.kind = OptimizerSpec::Kind::kAdam};
  ThreadPool pool{1};
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  std::vector<std::unique_ptr<Listener>> listeners;
  std::shared_ptr<ps::Shard> shard;
  std::shared_ptr<StateFetch> fetch;
  Mutex mutex;
  CondVar changed;
  std::vector<std::shared_ptr<Stream>> streams ABSL_GUARDED_BY(mutex);
  std::optional<absl::Status> end ABSL_GUARDED_BY(mutex);
  int ends ABSL_GUARDED_BY(mutex) = 0;
  int arrived ABSL_GUARDED_BY(mutex) = 0;  // pieces
};

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("parameters and slots come from all servers of the former layout", "[runtime]") {
  Transfer transfer;
  transfer.Start();
  REQUIRE(transfer.End().ok());
  {
    MutexLock lock(transfer.mutex);
    CHECK(transfer.arrived > 0);
  }
  transfer.shard->FinishMove(kVersion);
  const auto layout = transfer.shard->place().layout;
  for (const Bucket& bucket : layout->buckets()) {
    for (std::uint32_t array = 0; array < 3; ++array) {
      const auto floats = transfer.shard->Range(array, bucket.begin, bucket.end);
      REQUIRE(floats.ok());
      for (std::size_t i = 0; i < floats->size(); ++i) {
        REQUIRE((*floats)[i] == ValueOf(array, bucket.begin + static_cast<std::int64_t>(i)));
      }
    }
  }
}

TEST_CASE("a fetch that cannot be completed ends with the reason, once", "[runtime]") {
  struct Row {
    Source::Answer answer;
    absl::StatusCode code;
    const char* text;
  };
  const Row rows[] = {
      {[](Stream& s, const Fetch&) {
         (void)s.Send({{}, Refuse{RefuseReason::kRetry, "is at g1.c6, not g1.c5", {}}});
       },
       absl::StatusCode::kFailedPrecondition, "g1.c6"},
      {[](Stream& s, const Fetch&) { s.Close(); }, absl::StatusCode::kUnavailable, "ps:1 at b"},
      {[](Stream& s, const Fetch& fetch) {
         const Fetch shorter{.request = fetch.request,
                             .version = fetch.version,
                             .array = fetch.array,
                             .ranges = {{fetch.ranges[0].begin, fetch.ranges[0].end - 1}}};
         AnswerWell(s, shorter);
       },
       absl::StatusCode::kInternal, "ps:1 sent"},
      {[](Stream& s, const Fetch& fetch) {
         Fetch later = fetch;
         later.version.commit = CommitNumber(6);
         AnswerWell(s, later);
       },
       absl::StatusCode::kInternal, "g1.c6"},
      {[](Stream& s, const Fetch& fetch) {
         Fetch other = fetch;
         other.request += 1;
         AnswerWell(s, other);
       },
       absl::StatusCode::kInternal, "out of order"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    Transfer transfer(row.answer);
    transfer.Start();
    const absl::Status status = transfer.End();
    CHECK(status.code() == row.code);
    CHECK_THAT(std::string(status.message()), Contains(row.text));
    transfer.fetch->Cancel();
    MutexLock lock(transfer.mutex);
    CHECK(transfer.ends == 1);
  }
}

TEST_CASE("a fetch from a server that is not there says which", "[runtime]") {
  Transfer transfer;
  transfer.listeners[1]->Shutdown(std::chrono::seconds(1));
  transfer.listeners.pop_back();
  transfer.Open();
  const absl::Status status = transfer.End();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Contains("ps:1 at b"));
}

TEST_CASE("a source that goes before there is something to fetch is named then", "[runtime]") {
  Transfer transfer;
  transfer.Open();
  REQUIRE(transfer.End().ok());
  transfer.listeners[1]->Shutdown(std::chrono::seconds(1));
  transfer.Fill();
  const absl::Status status = transfer.End();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(status.message()), Contains("ps:1 at b"));
  transfer.fetch->Cancel();
  MutexLock lock(transfer.mutex);
  CHECK(transfer.ends == 1);
}

TEST_CASE("a fetch that is called off tells nobody", "[runtime]") {
  Transfer transfer([](Stream&, const Fetch&) {});  // never answers
  transfer.Start();
  transfer.fetch->Cancel();
  MutexLock lock(transfer.mutex);
  CHECK_FALSE(transfer.end);
}

}  // namespace evenkeel
