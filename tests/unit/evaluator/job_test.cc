// The evaluator beside a scripted chief, over the in-process transport.
#include <deque>
#include <optional>
#include <thread>

#include "evenkeel/core/mutex.h"
#include "evenkeel/core/status.h"
#include "evenkeel/transport/transports.h"
#include "fixture.h"

namespace evenkeel {
namespace {

using namespace evaluator_test;

const std::string kJob(32, 'a');

// Welcomes whoever joins, and keeps the reports.
class FakeChief {
 public:
  explicit FakeChief(Transport& transport) {
    listener_ = Must(transport.Listen(Service::kChief, "chief:0", [this](std::shared_ptr<Stream> stream) {
      return std::make_shared<Handler>(*this, std::move(stream));
    }));
    address = absl::StrCat("chief:", listener_->port());
  }
  ~FakeChief() { listener_->Shutdown(std::chrono::seconds(5)); }

  void Announce(Version version, bool final) { Send(CheckpointDurable{version, final}); }
  void EndJob() { Send(JobEnd{true, "finished", ""}); }
  void BreakStream() {
    std::shared_ptr<Stream> stream = AwaitStream();
    {
      MutexLock lock(mutex_);
      stream_.reset();
    }
    stream->Close();
  }
  void AwaitJoin() { AwaitStream(); }

  EvalReport NextReport() {
    const TimePoint deadline = Clock::Real().Now() + std::chrono::seconds(30);
    MutexLock lock(mutex_);
    while (reports_.empty()) {
      if (!changed_.WaitUntil(mutex_, deadline)) FAIL("no report came");
    }
    EvalReport report = std::move(reports_.front());
    reports_.pop_front();
    return report;
  }
  bool HasReports() {
    MutexLock lock(mutex_);
    return !reports_.empty();
  }

  std::string address;

 private:
  struct Handler final : StreamHandler {
    Handler(FakeChief& c, std::shared_ptr<Stream> s) : chief(c), stream(std::move(s)) {}
    void OnMessage(Stream&, Message message, const PayloadIn&) override {
      if (const auto* join = std::get_if<Join>(&message.body)) {
        EK_CHECK(join->role == Role::kEvaluator);  // Catch2 asserts on one thread only
        (void)stream->Send(
            chief.Wrap(Welcome{Incarnation{}, kJob, join->experiment_json, 60'000, 10'000, {}, {}, 0, 0}));
        MutexLock lock(chief.mutex_);
        chief.stream_ = stream;
        chief.changed_.NotifyAll();
      } else if (auto* report = std::get_if<EvalReport>(&message.body)) {
        MutexLock lock(chief.mutex_);
        chief.reports_.push_back(std::move(*report));
        chief.changed_.NotifyAll();
      }
    }
    void OnClosed(Stream&, const absl::Status&) override { stream.reset(); }
    FakeChief& chief;
    std::shared_ptr<Stream> stream;
  };

  static Message Wrap(Body body) {
    Envelope envelope;
    envelope.job_id = kJob;
    envelope.term = Term(1);
    envelope.generation = Generation(1);
    return Message{envelope, std::move(body)};
  }
  std::shared_ptr<Stream> AwaitStream() {
    const TimePoint deadline = Clock::Real().Now() + std::chrono::seconds(30);
    MutexLock lock(mutex_);
    while (!stream_) {
      if (!changed_.WaitUntil(mutex_, deadline)) FAIL("the evaluator did not join");
    }
    return stream_;
  }
  void Send(Body body) { Must(AwaitStream()->Send(Wrap(std::move(body)))); }

  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  std::deque<EvalReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Listener> listener_;
};

// RunEvaluator on a thread of its own.
class LiveEvaluator {
 public:
  LiveEvaluator(const LinearJob& job, Transport& transport, const std::string& chief_address)
      : options_(job.Options()) {
    options_.chief_address = chief_address;
    thread_ = std::thread(
        [this, &transport] { status_ = RunEvaluator(options_, transport, Storage::Posix(), Clock::Real(), stop_); });
  }
  ~LiveEvaluator() {
    stop_.Request("the test is over");
    if (thread_.joinable()) thread_.join();
  }
  void Stop() { stop_.Request("told to"); }
  absl::Status Wait() {
    thread_.join();
    return status_;
  }

 private:
  EvaluatorOptions options_;
  StopSource stop_;
  absl::Status status_;
  std::thread thread_;
};

TEST_CASE("beside a job each announced checkpoint is reported, the final one as final", "[evaluator]") {
  LinearJob job;
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  FakeChief chief(*transport);
  LiveEvaluator evaluator(job, *transport, chief.address);
  job.Write(At(1, 2), 2, 0);
  chief.Announce(At(1, 2), false);
  const EvalReport first = chief.NextReport();
  CHECK(first.version == At(1, 2));
  REQUIRE(first.metrics.size() == 3);
  CHECK(first.metrics[0].first == "loss");
  CHECK(first.metrics[1].first == "mse");
  CHECK(first.metrics[2].second == Approx(1));
  CHECK(first.best_version == At(1, 2));
  CHECK(first.best_metric == "mse");
  CHECK_FALSE(first.final_score);

  job.Write(At(1, 4), 0, 1, /*final=*/true);
  chief.Announce(At(1, 4), true);
  const EvalReport last = chief.NextReport();
  CHECK(last.version == At(1, 4));
  CHECK(last.final_score);
  CHECK(last.best_version == At(1, 2));
  CHECK_FALSE(last.stop);
  chief.EndJob();
  Must(evaluator.Wait());
  CHECK_FALSE(chief.HasReports());
  CHECK(job.ScoredInOrder() == "g1-c2 g1-c4");
}

TEST_CASE("a checkpoint that turns out to be the last is reported again, not scored again", "[evaluator]") {
  LinearJob job;
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  FakeChief chief(*transport);
  LiveEvaluator evaluator(job, *transport, chief.address);
  job.Write(At(1, 2), 2, 0);
  chief.Announce(At(1, 2), false);
  CHECK_FALSE(chief.NextReport().final_score);
  chief.Announce(At(1, 2), true);
  CHECK(chief.NextReport().final_score);
  chief.EndJob();
  Must(evaluator.Wait());
  CHECK(job.Rows().size() == 1);
}

TEST_CASE("early stopping asks the chief to end the job, with a reason", "[evaluator]") {
  LinearJob job(R"({"metrics": ["mse"], "early_stopping": {"metric": "mse", "patience": 2}})");
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  FakeChief chief(*transport);
  LiveEvaluator evaluator(job, *transport, chief.address);
  for (std::uint64_t commit = 1; commit <= 3; ++commit) {
    job.Write(At(1, commit), 0, 1);
    chief.Announce(At(1, commit), false);
    const EvalReport report = chief.NextReport();
    CHECK(report.stop == (commit == 3));
    CHECK(report.reason.empty() == (commit != 3));
  }
  chief.EndJob();
  Must(evaluator.Wait());
}

TEST_CASE("after a broken stream the last report is said again", "[evaluator]") {
  LinearJob job;
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  FakeChief chief(*transport);
  LiveEvaluator evaluator(job, *transport, chief.address);
  job.Write(At(1, 2), 2, 0, /*final=*/true);
  chief.Announce(At(1, 2), true);
  while (!chief.NextReport().final_score) {  // it may have found the checkpoint before it heard that this is the last
  }
  chief.BreakStream();
  chief.AwaitJoin();
  CHECK(chief.NextReport().version == At(1, 2));
  chief.EndJob();
  Must(evaluator.Wait());
  CHECK(job.Rows().size() == 1);
}

TEST_CASE("a final checkpoint is scored even when the job ended without waiting", "[evaluator]") {
  LinearJob job;
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  FakeChief chief(*transport);
  job.Write(At(1, 2), 0, 1);
  job.Write(At(1, 4), 2, 1, /*final=*/true);
  LiveEvaluator evaluator(job, *transport, chief.address);
  chief.EndJob();
  Must(evaluator.Wait());
  CHECK(job.Best()["checkpoint"] == "g1-c4");
}

TEST_CASE("a checkpoint removed before it could be scored is passed over", "[evaluator]") {
  LinearJob job;
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  FakeChief chief(*transport);
  LiveEvaluator evaluator(job, *transport, chief.address);
  job.Write(At(1, 4), 2, 0);
  chief.Announce(At(1, 2), false);
  chief.Announce(At(1, 4), false);
  CHECK(chief.NextReport().version == At(1, 4));
  chief.EndJob();
  Must(evaluator.Wait());
  CHECK(job.ScoredInOrder() == "g1-c4");
}

TEST_CASE("told to stop, it leaves in order", "[evaluator]") {
  LinearJob job;
  job.experiment.membership.drain = std::chrono::milliseconds(1);
  std::unique_ptr<Transport> transport = MakeInprocTransport();
  FakeChief chief(*transport);
  LiveEvaluator evaluator(job, *transport, chief.address);
  chief.AwaitJoin();
  evaluator.Stop();
  Must(evaluator.Wait());
}

}  // namespace
}  // namespace evenkeel
