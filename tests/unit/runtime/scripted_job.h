// Live members against a scripted chief, server or worker, over the in-process transport.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "evenkeel/core/mutex.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/runtime/ps_runner.h"
#include "evenkeel/transport/transports.h"

namespace evenkeel {

inline const std::string kJob(32, 'a');
inline const std::string kSpec(64, 'b');

inline Version At(std::uint64_t commit) { return Version{Generation(1), CommitNumber(commit)}; }

struct Received {
  Message message;
  std::vector<float> payload;
};

// Keeps what arrives; a test waits for it.
class Inbox final : public StreamHandler {
 public:
  void OnMessage(Stream& stream, Message message, const PayloadIn& payload) override {
    std::vector<float> floats((payload.size() + sizeof(float) - 1) / sizeof(float));
    if (!payload.CopyTo(std::as_writable_bytes(std::span(floats)).first(payload.size()))) return;
    MutexLock lock(mutex_);
    received_.push_back({std::move(message), std::move(floats)});
    changed_.NotifyAll();
  }
  void OnClosed(Stream&, const absl::Status&) override {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  // The next message of this kind that has not been taken yet; others before it are skipped.
  template <class T>
  Received Next() {
    const TimePoint deadline = Clock::Real().Now() + std::chrono::seconds(30);
    MutexLock lock(mutex_);
    for (;;) {
      while (taken_ < received_.size()) {
        Received& next = received_[taken_++];
        if (std::holds_alternative<T>(next.message.body)) return next;
      }
      if (!changed_.WaitUntil(mutex_, deadline)) {
        FAIL("the message did not come");
      }
    }
  }
  template <class T>
  T NextBody() {
    return std::get<T>(Next<T>().message.body);
  }
  template <class T>
  int Count() {
    MutexLock lock(mutex_);
    return static_cast<int>(std::count_if(received_.begin(), received_.end(), [](const Received& received) {
      return std::holds_alternative<T>(received.message.body);
    }));
  }
  void AwaitClosed() {
    const TimePoint deadline = Clock::Real().Now() + std::chrono::seconds(30);
    MutexLock lock(mutex_);
    while (!closed_) {
      if (!changed_.WaitUntil(mutex_, deadline)) FAIL("the stream did not close");
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Received> received_;
  std::size_t taken_ = 0;
  bool closed_ = false;
};

// A chief that says what the test lets it say.
class ScriptedPeer {
 public:
  ScriptedPeer(Transport& transport, Service service, std::string address)
      : transport_(transport), service_(service), address_(std::move(address)) {}

  void Listen() {
    listener_ = *transport_.Listen(service_, address_, [this](std::shared_ptr<Stream> stream) {
      auto inbox = std::make_shared<Inbox>();
      MutexLock lock(mutex_);
      streams_.push_back({std::move(stream), inbox});
      changed_.NotifyAll();
      return inbox;
    });
  }
  void StopListening() { listener_.reset(); }
  // Waits for the n-th stream; it is the member's from then on.
  void Await(std::size_t n) {
    const TimePoint deadline = Clock::Real().Now() + std::chrono::seconds(30);
    MutexLock lock(mutex_);
    while (streams_.size() < n) {
      if (!changed_.WaitUntil(mutex_, deadline)) FAIL("the member did not connect");
    }
    std::tie(stream_, inbox_) = streams_[n - 1];
  }
  void Tell(Body body, std::vector<float> payload = {}) {
    const auto owner = std::make_shared<const std::vector<float>>(std::move(payload));
    auto envelope = Envelope();
    envelope.layout = layout_;
    REQUIRE(stream_->Send({envelope, std::move(body)}, PayloadOut{std::as_bytes(std::span(*owner)), owner}).ok());
  }
  void SetLayout(LayoutNumber layout) { layout_ = layout; }
  std::size_t streams() {
    MutexLock lock(mutex_);
    return streams_.size();
  }
  void CloseStream() { stream_->Close(); }
  // What the member says.
  const std::shared_ptr<Inbox>& inbox() const { return inbox_; }

  static evenkeel::Envelope Envelope() {
    return {
        .job_id = kJob, .spec_hash = kSpec, .term = Term(1), .generation = Generation(1), .layout = LayoutNumber(1)};
  }

 private:
  Transport& transport_;
  const Service service_;
  const std::string address_;
  LayoutNumber layout_{1};
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<std::shared_ptr<Stream>, std::shared_ptr<Inbox>>> streams_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<Inbox> inbox_;
  std::unique_ptr<Listener> listener_;
};

class ScriptedChief : public ScriptedPeer {
 public:
  explicit ScriptedChief(Transport& transport) : ScriptedPeer(transport, Service::kChief, "chief") {}
};

// A job with one server, run by the test.
class Job {
 public:
  explicit Job(Duration chief_timeout = std::chrono::seconds(60)) {
    options_.name = "ps:0";
    options_.index = 0;
    options_.chief_address = "chief";
    options_.listen_address = "ps:0";
    options_.experiment_json = "{}";
    options_.spec_hash = kSpec;
    options_.chief_timeout = chief_timeout;
    options_.stop_grace = Duration::zero();
    options_.threads = 2;
    tensor_.name = "weight";
    tensor_.shape = Shape{100};
    tensor_.initializer.kind = InitializerSpec::Kind::kConstant;
    tensor_.initializer.value = 1;
  }
  ~Job() {
    stop_.Request("the test is over");
    if (server_.joinable()) server_.join();
  }

  void StartServer() {
    server_ = std::thread([this] { result_ = RunPs(options_, *transport_, *storage_, Clock::Real(), stop_); });
  }
  absl::Status Result() {
    server_.join();
    return *result_;
  }

  // On the server's n-th stream.
  Join Welcome(std::size_t n = 1, std::int64_t lease_ms = 10000) {
    chief_.Await(n);
    evenkeel::Join join = chief_.inbox()->NextBody<evenkeel::Join>();
    Tell(evenkeel::Welcome{.incarnation = Incarnation(1), .job_id = kJob, .lease_ms = lease_ms, .renew_ms = 20});
    address_ = join.address;
    return join;
  }
  void Place() {
    Configure configure{.server = ServerIndex(0), .servers = 1, .tensors = {tensor_}, .bucket_bytes = 256};
    configure.version = At(0);
    Tell(configure);
    CHECK(chief_.inbox()->NextBody<Configured>().owned_floats == 112);
    Tell(Members{MembershipEpoch(1), true, {{Incarnation(10), "worker:0"}}, {}});
    chief_.inbox()->Next<MembersAck>();
  }
  void ConnectWorker() {
    from_worker_ = std::make_shared<Inbox>();
    to_worker_ = transport_->Connect(Service::kParameterServer, address_, from_worker_, std::chrono::seconds(5));
    WorkerTells(Hello{"worker:0"});
    CHECK(from_worker_->NextBody<HelloAck>().version == At(0));
  }
  // Every gradient is `sum`.
  void StageAll(std::uint64_t sequence, float sum) {
    auto layout = *ParameterLayout::Create({tensor_}, 256, 1);
    const UpdateId update{Term(1), Incarnation(10), sequence};
    for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
      auto floats = std::make_shared<std::vector<float>>(static_cast<size_t>(layout.buckets()[b].size()), sum);
      WorkerTells(Stage{.update = update, .bucket = static_cast<std::int32_t>(b)},
                  {std::as_bytes(std::span<const float>(*floats)), floats});
    }
    WorkerTells(Stage{.update = update, .bucket = -1, .closing = true, .samples = 4, .computed_on = At(0)});
    CHECK(from_worker_->NextBody<StageAck>().complete);
    CHECK(chief_.inbox()->NextBody<Staged>().update == update);
  }
  void Commit(std::uint64_t commit) {
    const std::vector<UpdateId> updates{UpdateId{Term(1), Incarnation(10), commit}};
    Tell(Seal{SetNumber(commit), 0, updates});
    chief_.inbox()->Next<Sealed>();
    Decision decision{.version = At(commit), .set = SetNumber(commit), .samples = 4};
    decision.updates = {CommittedUpdate{.update = updates[0]}};
    decision.learning_rate = 0.5;
    decision.previous_hash = chain_;
    decision.hash = chain_ = HashDecision(decision);
    Tell(decision);
    CHECK(chief_.inbox()->NextBody<Applied>().version == At(commit));
  }
  // The parameters of the first tensor, as pulled.
  std::vector<float> Pulled(std::uint64_t request, Version* version = nullptr) {
    std::vector<float> flat(112, -1);
    auto layout = *ParameterLayout::Create({tensor_}, 256, 1);
    for (;;) {
      Received part = from_worker_->Next<PullData>();
      const auto& data = std::get<PullData>(part.message.body);
      CHECK(data.request == request);
      if (version != nullptr) *version = data.version;
      if (data.bucket < 0) break;
      std::copy(part.payload.begin(), part.payload.end(),
                flat.begin() + layout.buckets()[static_cast<size_t>(data.bucket)].begin);
    }
    flat.resize(100);
    return flat;
  }

  void Tell(Body body) { chief_.Tell(std::move(body)); }
  void WorkerTells(Body body, PayloadOut payload = {}) {
    Envelope envelope = ScriptedChief::Envelope();
    envelope.sender = Incarnation(10);
    REQUIRE(to_worker_->Send({envelope, std::move(body)}, std::move(payload)).ok());
  }
  PsOptions options_;
  TensorSpec tensor_;
  StopSource stop_;
  std::unique_ptr<Transport> transport_ = MakeInprocTransport();
  std::unique_ptr<Storage> storage_ = MakeMemoryStorage();
  ScriptedChief chief_{*transport_};
  std::shared_ptr<Stream> to_worker_;
  std::shared_ptr<Inbox> from_worker_;
  std::string address_;
  std::uint64_t chain_ = 0;

 private:
  std::optional<absl::Status> result_;
  std::thread server_;
};

}  // namespace evenkeel
