// A server's stream that breaks while parameters come, and goes on with another version.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/worker/worker.h"
#include "unit/runtime/scripted_job.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kBucketBytes = 256;
constexpr int kFeatures = 20, kRows = 8;

class WorkerAlone {
 public:
  WorkerAlone() {
    InitLog("", LogLevel::kError);
    WriteRows();
    auto experiment = ParseExperiment(
        absl::StrCat(R"({"model": {"layers": [{"dense": {"units": 16, "activation": "relu"}}, {"dense": {"units": 3}}]},
                         "input": {"train": {"csv": {"files": [")",
                     file_, R"("], "label": "y"}}, "classes": 3},
                         "train": {"epochs": 1, "global_batch_size": 4, "bucket_bytes": )",
                     kBucketBytes, R"(, "backend": "reference"}})"),
        "torn pull", {});
    REQUIRE(experiment.ok());
    options_.experiment = *std::move(experiment);
    options_.experiment.spec_hash = kSpec;
    options_.name = "worker:0";
    options_.chief_address = "chief";
    chief_.Listen();
    server_.Listen();
    thread_ = std::thread([this] { ended_ = RunWorker(options_, *transport_, Clock::Real(), stop_); });
  }
  ~WorkerAlone() {
    if (thread_.joinable()) thread_.join();
    std::remove(file_.c_str());
  }

  void Admit() {
    chief_.Await(1);
    const std::vector<TensorSpec> tensors = chief_.inbox()->NextBody<Join>().tensors;
    layout_.emplace(*ParameterLayout::Create(tensors, kBucketBytes, 1));
    Welcome welcome{.incarnation = Incarnation(10), .job_id = kJob, .lease_ms = 60000, .renew_ms = 1000};
    welcome.servers.push_back(ServerAddress{.address = "server", .name = "ps:0"});
    welcome.tensors = tensors;
    welcome.bucket_bytes = kBucketBytes;
    chief_.Tell(welcome);
    AcceptServerStream(1);
    chief_.inbox()->Next<Ready>();
    chief_.Tell(Admitted{Rank(0)});
  }
  void AcceptServerStream(std::size_t n) {
    server_.Await(n);
    server_.inbox()->Next<Hello>();
    server_.Tell(HelloAck{});
  }
  void TellTicket(std::uint64_t sequence, Version version) {
    Ticket ticket;
    ticket.update = {Term(1), Incarnation(10), sequence};
    ticket.positions = {{0, 4}};
    ticket.bound = true;
    ticket.version = version;
    ticket.deadline_ms = 60000;
    chief_.Tell(ticket);
  }
  // Buckets [begin, end) of a version whose parameters are all `value`; the first layer's are the last ones.
  void SendBuckets(std::uint64_t request, Version version, float value, int begin, int end) {
    for (int b = end; b-- > begin;) {
      const auto floats = static_cast<std::size_t>(layout_->buckets()[static_cast<std::size_t>(b)].size());
      server_.Tell(PullData{request, version, b}, std::vector<float>(floats, value));
    }
  }
  void SendAll(std::uint64_t request, Version version, float value) {
    SendBuckets(request, version, value, 0, buckets());
    server_.Tell(PullData{request, version, -1});
  }
  Stage AwaitStaged() {
    for (;;) {
      Stage stage = server_.inbox()->NextBody<Stage>();
      if (stage.closing) return stage;
    }
  }
  int buckets() const { return static_cast<int>(layout_->buckets().size()); }
  absl::Status AwaitEnd() {
    thread_.join();
    return ended_;
  }

  std::unique_ptr<Transport> transport_ = MakeInprocTransport();
  ScriptedChief chief_{*transport_};
  ScriptedPeer server_{*transport_, Service::kParameterServer, "server"};

 private:
  void WriteRows() {
    std::ofstream out(file_);
    for (int i = 0; i < kFeatures; ++i) out << 'x' << i << ',';
    out << "y\n";
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kFeatures; ++i) out << 0.1 * ((row * 7 + i * 3) % 11) << ',';
      out << row % 3 << '\n';
    }
  }

  const std::string file_ = absl::StrCat("/tmp/evenkeel_torn_pull_", getpid(), ".csv");
  WorkerOptions options_;
  StopSource stop_;
  std::optional<ParameterLayout> layout_;
  absl::Status ended_;
  std::thread thread_;
};

TEST_CASE("a step whose pull was torn between two versions stages nothing and computes on one", "[worker]") {
  WorkerAlone worker;
  worker.Admit();
  REQUIRE(worker.buckets() > 3);
  worker.TellTicket(1, At(2));
  worker.SendAll(worker.server_.inbox()->NextBody<Pull>().request, At(2), 0.5f);
  const Stage whole = worker.AwaitStaged();
  CHECK(whole.computed_on == At(2));
  CHECK(whole.samples == 4);
  worker.chief_.Tell(Outcome{whole.update, true, At(3)});

  worker.TellTicket(2, At(3));
  const auto first = worker.server_.inbox()->NextBody<Pull>();
  CHECK(first.at_least == At(3));
  // The first layer computes on what nothing else will be of.
  worker.SendBuckets(first.request, At(3), 0, 1, worker.buckets());
  worker.server_.CloseStream();
  worker.AcceptServerStream(2);
  const auto again = worker.server_.inbox()->NextBody<Pull>();
  CHECK(again.request == first.request);
  worker.SendAll(again.request, At(4), 0.5f);
  const auto anew = worker.server_.inbox()->NextBody<Pull>();
  CHECK(anew.request > again.request);
  CHECK(worker.server_.inbox()->Count<Stage>() == 0);
  worker.SendAll(anew.request, At(4), 0.5f);
  const Stage staged = worker.AwaitStaged();
  CHECK(staged.update.sequence == 2);
  CHECK(staged.computed_on == At(4));
  CHECK(staged.loss_sum == whole.loss_sum);
  worker.chief_.Tell(Outcome{staged.update, true, At(5)});
  worker.chief_.Tell(JobEnd{true, "finished", ""});
  CHECK(worker.AwaitEnd().ok());
}

}  // namespace
}  // namespace evenkeel
