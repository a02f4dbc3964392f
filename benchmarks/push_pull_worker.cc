// A worker of the push-pull benchmark: stages constant gradients straight from their arena and pulls the next version
// into that of the parameters, over one stream to each server.
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench_support.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/status.h"
#include "push_pull_job.h"

namespace evenkeel::bench {
namespace {

class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const PushPullJob& job, int index) {
    EK_ASSIGN_OR_RETURN(ParameterLayout layout, job.Layout());
    std::unique_ptr<Worker> worker(new Worker(job, index, std::move(layout)));
    const auto bytes = static_cast<std::size_t>(worker->layout_.total_floats()) * sizeof(float);
    EK_ASSIGN_OR_RETURN(worker->parameters_, Arena::Allocate(bytes));
    EK_ASSIGN_OR_RETURN(Arena gradients, Arena::Allocate(bytes, MemoryKind::kShared));
    worker->gradients_ = std::make_shared<const Arena>(std::move(gradients));
    job.FillGradients(index, worker->gradients_->floats());
    return worker;
  }
  ~Worker() {
    for (Link& link : links_) {
      if (link.stream) link.stream->Close();
    }
    transport_.reset();  // streams' handlers know this object
  }

  absl::Status Connect(const std::vector<std::string>& addresses) {
    links_.resize(addresses.size());
    for (std::size_t s = 0; s < addresses.size(); ++s) {
      links_[s].stream = transport_->Connect(Service::kParameterServer, addresses[s],
                                             std::make_shared<Handler>(*this, s), job_.timeout);
      EK_RETURN_IF_ERROR(Send(s, Hello{absl::StrCat("worker:", index_)}));
    }
    return Await("the servers' answer to Hello",
                 [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return greeted_ == links_.size(); });
  }

  absl::Status Round(Operation operation, bool counts) {
    if (job_.board != nullptr) job_.board->Begin();
    const bool pull = operation == Operation::kPushPull;
    ++sequence_;
    if (pull) ++commit_;
    {
      MutexLock lock(mutex_);
      done_ = 0;
      waits_for_ = operation;
    }
    EK_RETURN_IF_ERROR(StageAll(pull ? 0 : kDropMark));
    if (pull) {
      const Version next{Generation(1), CommitNumber(commit_)};
      const auto wait_ms = std::chrono::duration_cast<std::chrono::milliseconds>(job_.timeout).count();
      for (std::size_t s = 0; s < links_.size(); ++s) EK_RETURN_IF_ERROR(Send(s, Pull{commit_, next, wait_ms}));
    }
    if (job_.board != nullptr) job_.board->Pass(Station::kAllSent);
    EK_RETURN_IF_ERROR(Await(pull ? "the next version" : "the servers' StageAck",
                             [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_ == links_.size(); }));
    if (job_.board != nullptr) job_.board->End(counts && pull);
    return absl::OkStatus();
  }

  // Nothing has been pulled before the first commit.
  absl::Status Check() const { return commit_ == 0 ? absl::OkStatus() : job_.Check(parameters_.floats(), commit_); }

 private:
  struct Link {
    std::shared_ptr<Stream> stream;
  };
  struct Handler final : StreamHandler {
    Handler(Worker& w, std::size_t s) : worker(w), server(s) {}
    // Where a transport may put a stripe right away.
    std::span<std::byte> Destination(Stream&, const Message& message, std::size_t payload_bytes) override {
      const auto* data = std::get_if<PullData>(&message.body);
      if (data == nullptr) return {};
      const std::span<float> stripe = worker.StripeOf(worker.parameters_, data->bucket, server);
      return stripe.size_bytes() == payload_bytes ? std::as_writable_bytes(stripe) : std::span<std::byte>();
    }
    void OnMessage(Stream&, Message message, const PayloadIn& payload) override {
      worker.OnMessage(server, message, payload);
    }
    void OnClosed(Stream&, const absl::Status& status) override {
      worker.Fail(absl::UnavailableError(absl::StrCat("the stream to ps:", server, " ended: ", status.message())));
    }
    Worker& worker;
    const std::size_t server;
  };

  Worker(const PushPullJob& job, int index, ParameterLayout layout)
      : job_(job),
        index_(index),
        layout_(std::move(layout)),
        transport_(MakeBenchTransport(job.transport)),
        envelope_(job.MakeEnvelope(job.IncarnationOf(index))) {}

  absl::Status Send(std::size_t server, Body body, PayloadOut payload = {}) {
    return links_[server].stream->Send(Message{envelope_, std::move(body)}, std::move(payload));
  }
  // Empty where there is no such stripe.
  std::span<float> StripeOf(const Arena& arena, std::int32_t bucket, std::size_t server) const {
    if (bucket < 0 || static_cast<std::size_t>(bucket) >= layout_.buckets().size()) return {};
    const Stripe& stripe = layout_.StripeOf(bucket, ServerIndex(static_cast<std::uint32_t>(server)));
    return arena.floats().subspan(static_cast<std::size_t>(stripe.begin), static_cast<std::size_t>(stripe.size()));
  }

  // Bucket by bucket to all servers, as backward finishes them; then the closing messages.
  absl::Status StageAll(double loss_sum) {
    const UpdateId update{Term(1), envelope_.sender, sequence_};
    for (std::size_t b = 0; b < layout_.buckets().size(); ++b) {
      const auto bucket = static_cast<std::int32_t>(b);
      for (std::size_t s = 0; s < links_.size(); ++s) {
        const std::span<const float> stripe = StripeOf(*gradients_, bucket, s);
        if (stripe.empty()) continue;
        EK_RETURN_IF_ERROR(
            Send(s, Stage{.update = update, .bucket = bucket}, PayloadOut{std::as_bytes(stripe), gradients_}));
      }
    }
    for (std::size_t s = 0; s < links_.size(); ++s) {
      EK_RETURN_IF_ERROR(Send(s, Stage{.update = update,
                                       .bucket = -1,
                                       .closing = true,
                                       .samples = 1,
                                       .loss_sum = loss_sum,
                                       .computed_on = Version{Generation(1), CommitNumber(commit_)}}));
    }
    return absl::OkStatus();
  }

  void OnMessage(std::size_t server, const Message& message, const PayloadIn& payload) {
    if (const auto* data = std::get_if<PullData>(&message.body)) return OnPullData(server, *data, payload);
    if (const auto* refuse = std::get_if<Refuse>(&message.body)) return Fail(absl::InternalError(refuse->message));
    MutexLock lock(mutex_);
    if (std::holds_alternative<HelloAck>(message.body)) ++greeted_;
    const auto* ack = std::get_if<StageAck>(&message.body);
    if (ack != nullptr && ack->complete && waits_for_ == Operation::kPush) ++done_;
    Notify();
  }
  void OnPullData(std::size_t server, const PullData& data, const PayloadIn& payload) {
    HopBoard* const board = job_.board;
    if (data.bucket >= 0) {
      if (board != nullptr) {
        board->PassFirst(Station::kFirstDataIn);
        board->Pass(Station::kLastDataIn);
      }
      const std::span<float> stripe = StripeOf(parameters_, data.bucket, server);
      if (stripe.size_bytes() != payload.size()) {
        return Fail(absl::InternalError(absl::StrCat("bucket ", data.bucket, " came with ", payload.size(), " bytes")));
      }
      if (!stripe.empty() && !payload.CopyTo(std::as_writable_bytes(stripe))) {
        Fail(absl::UnavailableError("the server took a stripe back"));
      }
      return;
    }
    if (board != nullptr) board->Pass(Station::kMarkerIn);
    MutexLock lock(mutex_);
    if (data.version.commit != CommitNumber(data.request)) {
      failure_.Update(absl::InternalError(absl::StrCat("pull ", data.request, " gave ", ToString(data.version))));
    }
    if (++done_ == links_.size()) Notify();
  }
  void Fail(const absl::Status& status) {
    MutexLock lock(mutex_);
    failure_.Update(status);
    Notify();
  }

  void Notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    changes_.fetch_add(1, std::memory_order_release);
    changed_.NotifyAll();
  }

  template <class Done>
  absl::Status Await(const char* what, Done done) {
    const TimePoint deadline = Clock::Real().Now() + job_.timeout;
    for (bool attended = false;;) {
      std::uint64_t known = 0;
      {
        MutexLock lock(mutex_);
        if (!failure_.ok() || done()) return failure_;
        if (std::exchange(attended, false)) {
          if (changed_.WaitUntil(mutex_, deadline) || done()) continue;
          return absl::DeadlineExceededError(absl::StrCat("worker:", index_, " waited ", ToSeconds(job_.timeout),
                                                          " s for ", what, "; ", done_, " of ", links_.size(),
                                                          " servers are done"));
        }
        known = changes_.load(std::memory_order_relaxed);
      }
      // As a worker's step loop does.
      const auto changed = [&] { return changes_.load(std::memory_order_acquire) != known; };
      transport_->Attend(changed);
      attended = !changed();
    }
  }

  const PushPullJob& job_;
  const int index_;
  const ParameterLayout layout_;
  std::unique_ptr<Transport> transport_;
  const Envelope envelope_;
  Arena parameters_;
  std::shared_ptr<const Arena> gradients_;  // shared with what the transport still sends
  std::vector<Link> links_;
  std::uint64_t sequence_ = 0, commit_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::atomic<std::uint64_t> changes_{0};  // times that Notify was called
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::size_t greeted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t done_ ABSL_GUARDED_BY(mutex_) = 0;  // servers, with this round
  Operation waits_for_ ABSL_GUARDED_BY(mutex_) = Operation::kPush;
};

}  // namespace

absl::Status RunPushPullWorker(const PushPullJob& shared_job, int index, const std::vector<std::string>& addresses,
                               Line& line) {
  PushPullJob job = shared_job;
  if (index != 0) job.board = nullptr;
  EK_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Create(job, index));
  EK_RETURN_IF_ERROR(worker->Connect(addresses));
  return ServeBursts(line, job.timeout, [&](const Burst& burst) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> times;
    times.reserve(burst.rounds);
    for (std::uint32_t i = 0; i < burst.warm + burst.rounds; ++i) {
      const TimePoint begin = Clock::Real().Now();
      EK_RETURN_IF_ERROR(worker->Round(static_cast<Operation>(burst.operation), i >= burst.warm));
      if (i >= burst.warm) times.push_back(ToSeconds(Clock::Real().Now() - begin));
    }
    EK_RETURN_IF_ERROR(worker->Check());
    return times;
  });
}

}  // namespace evenkeel::bench
