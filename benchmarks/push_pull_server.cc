// A server of the push-pull benchmark: the real RunPs. Its chief is a script in the same process that is called in
// place, so that a round costs what the data path costs.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench_support.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"
#include "evenkeel/runtime/ps_runner.h"
#include "push_pull_job.h"

namespace evenkeel::bench {
namespace {

// Welcomes and configures the server, names all workers, then decides every set as soon as it is sealed. The next set
// is ordered ahead of its updates, as a chief in BSP does.
//
// Threading: none; one caller at a time.
class ScriptedChief {
 public:
  ScriptedChief(const PushPullJob& job, int server, std::function<void(absl::StatusOr<std::string>)> ready_or_failed)
      : job_(job),
        server_(server),
        report_(std::move(ready_or_failed)),
        sequences_(static_cast<std::size_t>(job.workers), 1) {}

  // What the chief says to it.
  void On(const Message& message, std::vector<Body>& answers) {
    if (const auto* join = std::get_if<Join>(&message.body)) OnJoin(*join, answers);
    if (std::holds_alternative<Configured>(message.body)) answers.push_back(AllMembers());
    if (std::holds_alternative<MembersAck>(message.body)) {
      Order(answers);
      report_(address_);
    }
    if (const auto* staged = std::get_if<Staged>(&message.body)) OnStaged(*staged, answers);
    if (const auto* sealed = std::get_if<Sealed>(&message.body)) OnSealed(*sealed, answers);
    if (const auto* applied = std::get_if<Applied>(&message.body)) OnApplied(*applied, answers);
    if (const auto* refuse = std::get_if<Refuse>(&message.body)) report_(absl::InternalError(refuse->message));
  }

 private:
  static constexpr std::uint64_t kDurableEvery = 256;  // commits

  void OnJoin(const Join& join, std::vector<Body>& answers) {
    address_ = join.address;
    constexpr std::int64_t kHourMs = 3'600'000;
    answers.push_back(Welcome{.incarnation = Incarnation(1),
                              .job_id = job_.MakeEnvelope(Incarnation()).job_id,
                              .lease_ms = 24 * kHourMs,
                              .renew_ms = 23 * kHourMs});
    answers.push_back(Configure{.server = ServerIndex(static_cast<std::uint32_t>(server_)),
                                .servers = static_cast<std::uint32_t>(job_.servers),
                                .tensors = {job_.Tensor()},
                                .bucket_bytes = job_.bucket_bytes,
                                .optimizer = job_.Optimizer(),
                                .version = Version{Generation(1), CommitNumber(0)}});
  }
  Members AllMembers() const {
    Members members{.epoch = MembershipEpoch(1), .full = true};
    for (int w = 0; w < job_.workers; ++w)
      members.admitted.push_back({job_.IncarnationOf(w), absl::StrCat("worker:", w)});
    return members;
  }
  UpdateId UpdateOf(int worker) const {
    return UpdateId{Term(1), job_.IncarnationOf(worker), sequences_[static_cast<std::size_t>(worker)]};
  }
  void Order(std::vector<Body>& answers) {
    Seal seal{.set = SetNumber(set_), .attempt = attempt_};
    for (int w = 0; w < job_.workers; ++w) seal.updates.push_back(UpdateOf(w));
    answers.push_back(std::move(seal));
  }
  void OnStaged(const Staged& staged, std::vector<Body>& answers) {
    if (staged.loss_sum != kDropMark) return;
    answers.push_back(Drop{{staged.update}});
    ++sequences_[static_cast<std::size_t>(staged.update.incarnation.value() - job_.IncarnationOf(0).value())];
    ++attempt_;
    Order(answers);
  }
  void OnSealed(const Sealed& sealed, std::vector<Body>& answers) {
    if (sealed.set.value() != set_ || sealed.attempt != attempt_) return;  // replaced meanwhile
    if (job_.board != nullptr) job_.board->Pass(Station::kSealed);
    Decision decision{.version = Version{Generation(1), CommitNumber(++commit_)},
                      .set = sealed.set,
                      .attempt = sealed.attempt,
                      .samples = job_.workers};
    for (int w = 0; w < job_.workers; ++w) {
      decision.updates.push_back(CommittedUpdate{.update = UpdateOf(w), .rank = Rank(static_cast<std::uint32_t>(w))});
    }
    decision.learning_rate = kLearningRate;
    decision.previous_hash = chain_;
    decision.hash = chain_ = HashDecision(decision);
    answers.push_back(std::move(decision));
    for (std::uint64_t& sequence : sequences_) ++sequence;
    ++set_;
    attempt_ = 0;
    Order(answers);
  }
  void OnApplied(const Applied& applied, std::vector<Body>& answers) {
    if (job_.board != nullptr) {
      const TimePoint now = Clock::Real().Now();
      job_.board->PassAt(Station::kApplied, now);
      job_.board->PassAt(Station::kApplyBegins, now - FromSeconds(applied.apply_seconds));
    }
    if (applied.version.commit.value() % kDurableEvery == 0) answers.push_back(CheckpointDurable{applied.version});
  }

  const PushPullJob& job_;
  const int server_;
  const std::function<void(absl::StatusOr<std::string>)> report_;
  std::string address_;
  std::vector<std::uint64_t> sequences_;  // of each worker's next update
  std::uint64_t set_ = 1, commit_ = 0, chain_ = 0;
  std::uint32_t attempt_ = 0;
};

// The server's stream to the chief. What either side says goes into one queue; whoever finds nobody delivering
// delivers, so that neither side is called while it is in a call, and no message changes threads for its own sake.
class DirectStream final : public Stream, public std::enable_shared_from_this<DirectStream> {
 public:
  DirectStream(const PushPullJob& job, ScriptedChief& chief, std::shared_ptr<StreamHandler> server)
      : envelope_(job.MakeEnvelope(Incarnation())), chief_(chief), server_(std::move(server)) {}

  absl::Status Send(Message message, PayloadOut) override {
    {
      MutexLock lock(mutex_);
      if (closing_) return absl::UnavailableError("[send] stream to the chief is closed");
      if (queue_.size() >= kMostQueued) return absl::ResourceExhaustedError("[send] the chief's queue is full");
      queue_.push_back(std::move(message));
    }
    Deliver();
    return absl::OkStatus();
  }
  void Close() override {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    Deliver();
  }
  std::string peer() const override { return "chief"; }
  std::string way() const override { return "call"; }

 private:
  static constexpr std::size_t kMostQueued = 1 << 12;

  void Deliver() {
    const std::shared_ptr<DirectStream> self = shared_from_this();
    {
      MutexLock lock(mutex_);
      if (delivering_) return;
      delivering_ = true;
    }
    std::vector<Body> answers;
    for (;;) {
      Message message;
      {
        MutexLock lock(mutex_);
        if (queue_.empty()) {
          if (!closing_ || closed_) {
            delivering_ = false;
            return;
          }
          closed_ = true;  // delivering_ stays: nothing follows OnClosed
          break;
        }
        message = std::move(queue_.front());
        queue_.pop_front();
      }
      answers.clear();
      chief_.On(message, answers);
      // The server's replies to these queue behind; its own thread of control comes back here first.
      for (Body& answer : answers) server_->OnMessage(*this, Message{envelope_, std::move(answer)}, PayloadIn());
    }
    std::exchange(server_, nullptr)->OnClosed(*this, absl::OkStatus());
  }

  const Envelope envelope_;
  ScriptedChief& chief_;
  Mutex mutex_;
  std::deque<Message> queue_ ABSL_GUARDED_BY(mutex_);
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<StreamHandler> server_;  // of whoever delivers
};

// Streams to the chief are calls in place; those of workers are the transport's under test.
class SplitTransport final : public Transport {
 public:
  SplitTransport(const PushPullJob& job, ScriptedChief& chief, Transport& workers, HopBoard* board)
      : job_(job), chief_(chief), workers_(workers), board_(board) {}

  absl::StatusOr<std::unique_ptr<Listener>> Listen(Service service, const std::string& address,
                                                   Acceptor acceptor) override {
    if (board_ != nullptr) acceptor = WithStations(std::move(acceptor), *board_);
    return workers_.Listen(service, address, std::move(acceptor));
  }
  std::shared_ptr<Stream> Connect(Service service, const std::string& address, std::shared_ptr<StreamHandler> handler,
                                  Duration timeout) override {
    if (service == Service::kChief) return std::make_shared<DirectStream>(job_, chief_, std::move(handler));
    return workers_.Connect(service, address, std::move(handler), timeout);
  }

 private:
  const PushPullJob& job_;
  ScriptedChief& chief_;
  Transport& workers_;
  HopBoard* const board_;
};

}  // namespace

absl::Status RunPushPullServer(const PushPullJob& shared_job, int server, Line& line) {
  PushPullJob job = shared_job;
  if (server != 0) job.board = nullptr;
  const std::string name = absl::StrCat("ps:", server);
  StopSource stop;
  Mutex mutex;
  absl::Status failure;
  ScriptedChief chief(job, server, [&](const absl::StatusOr<std::string>& report) {
    absl::Status status = report.status();
    if (status.ok()) status = line.Send("+" + *report, Clock::Real().Now() + job.timeout);
    if (status.ok()) return;
    MutexLock lock(mutex);
    failure.Update(status);
    stop.Request("it cannot go on");
  });
  const std::unique_ptr<Transport> workers = MakeBenchTransport(job.transport);
  SplitTransport transport(job, chief, *workers, job.board);
  std::thread watcher([&] {
    (void)line.Receive(kNever);  // nothing is sent: the line's end is what it waits for
    stop.Request("the benchmark is over");
  });
  PsOptions options;
  options.name = name;
  options.index = server;
  options.chief_address = "chief";
  options.listen_address = "127.0.0.1:0";
  options.experiment_json = "{}";
  options.spec_hash = job.MakeEnvelope(Incarnation()).spec_hash;
  options.chief_timeout = job.timeout;
  options.stop_grace = Duration::zero();
  options.drain = std::chrono::milliseconds(200);
  options.threads = job.threads;
  absl::Status result = RunPs(options, transport, Storage::Posix(), Clock::Real(), stop);
  line.StopReceiving();
  watcher.join();
  MutexLock lock(mutex);
  result.Update(failure);
  return result;
}

}  // namespace evenkeel::bench
