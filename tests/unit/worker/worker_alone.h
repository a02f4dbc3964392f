// A live worker against a scripted chief and scripted servers.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/log.h"
#include "evenkeel/worker/worker.h"
#include "unit/runtime/scripted_job.h"

namespace evenkeel {

inline constexpr std::int64_t kBucketBytes = 256;
inline constexpr int kFeatures = 20, kRows = 8;

inline const ServerAddress kServer{.address = "server", .incarnation = Incarnation(1), .name = "ps:0"};
inline const ServerAddress kOther{.address = "other", .incarnation = Incarnation(2), .name = "ps:1"};

class WorkerAlone {
 public:
  // `train`: further options of the experiment's "train", each after a comma.
  explicit WorkerAlone(const std::string& train = "") {
    InitLog("", LogLevel::kError);
    WriteRows();
    auto experiment = ParseExperiment(
        absl::StrCat(R"({"model": {"layers": [{"dense": {"units": 16, "activation": "relu"}}, {"dense": {"units": 3}}]},
                         "input": {"train": {"csv": {"files": [")",
                     file_, R"("], "label": "y"}}, "classes": 3},
                         "train": {"epochs": 1, "global_batch_size": 4, "bucket_bytes": )",
                     kBucketBytes, R"(, "backend": "reference")", train, "}}"),
        "torn pull", {});
    REQUIRE(experiment.ok());
    options_.experiment = *std::move(experiment);
    options_.experiment.spec_hash = kSpec;
    options_.name = "worker:0";
    options_.chief_address = "chief";
    chief_.Listen();
    server_.Listen();
    other_.Listen();
    thread_ = std::thread([this] { ended_ = RunWorker(options_, *transport_, Clock::Real(), stop_); });
  }
  ~WorkerAlone() {
    if (thread_.joinable()) thread_.join();
    std::remove(file_.c_str());
  }

  void Admit() {
    chief_.Await(1);
    tensors_ = chief_.inbox()->NextBody<Join>().tensors;
    Divide(LayoutNumber(1), {kServer});
    AcceptServerStream(1);
    chief_.inbox()->Next<Ready>();
    chief_.Tell(Admitted{Rank(0)});
  }
  // Of the job's servers, in the order of `layout`, which rules from now on.
  void Divide(LayoutNumber number, std::vector<ServerAddress> servers) {
    number_ = number;
    chief_.SetLayout(number);
    for (ScriptedPeer* server : {&server_, &other_}) server->SetLayout(number);
    layout_.emplace(*ParameterLayout::Create(tensors_, kBucketBytes, static_cast<std::uint32_t>(servers.size())));
    chief_.Tell(WelcomeTo(std::move(servers)));
  }
  void AcceptServerStream(std::size_t n) { Accept(server_, n); }
  static void Accept(ScriptedPeer& server, std::size_t n) {
    server.Await(n);
    server.inbox()->Next<Hello>();
    server.Tell(HelloAck{});
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
    SendStripes(server_, 0, request, version, value, begin, end);
  }
  void SendStripes(ScriptedPeer& server, std::uint32_t place, std::uint64_t request, Version version, float value,
                   int begin, int end) {
    for (int b = end; b-- > begin;) {
      const auto floats = static_cast<std::size_t>(layout_->StripeOf(b, ServerIndex(place)).size());
      if (floats > 0) server.Tell(PullData{request, version, b}, std::vector<float>(floats, value));
    }
  }
  void SendAll(std::uint64_t request, Version version, float value) {
    SendBuckets(request, version, value, 0, buckets());
    server_.Tell(PullData{request, version, -1});
  }
  Stage AwaitStaged() { return AwaitStaged(server_, 0); }
  // With a stripe of each bucket before it, as large as this place's.
  Stage AwaitStaged(ScriptedPeer& server, std::uint32_t place) {
    for (;;) {
      const Received received = server.inbox()->Next<Stage>();
      const auto& stage = std::get<Stage>(received.message.body);
      CHECK(received.message.envelope.layout == number_);
      if (stage.closing) return stage;
      CHECK(received.payload.size() ==
            static_cast<std::size_t>(layout_->StripeOf(stage.bucket, ServerIndex(place)).size()));
    }
  }
  int buckets() const { return static_cast<int>(layout_->buckets().size()); }
  void EndJob() {
    chief_.Tell(JobEnd{true, "finished", ""});
    thread_.join();
    CHECK(ended_.ok());
  }

  std::unique_ptr<Transport> transport_ = MakeInprocTransport();
  ScriptedChief chief_{*transport_};
  ScriptedPeer server_{*transport_, Service::kParameterServer, "server"};
  ScriptedPeer other_{*transport_, Service::kParameterServer, "other"};

 private:
  Welcome WelcomeTo(std::vector<ServerAddress> servers) const {
    Welcome welcome{.incarnation = Incarnation(10), .job_id = kJob, .lease_ms = 60000, .renew_ms = 1000};
    welcome.servers = std::move(servers);
    welcome.tensors = tensors_;
    welcome.bucket_bytes = kBucketBytes;
    return welcome;
  }
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
  std::vector<TensorSpec> tensors_;
  std::optional<ParameterLayout> layout_;
  LayoutNumber number_;
  absl::Status ended_;
  std::thread thread_;
};

}  // namespace evenkeel
