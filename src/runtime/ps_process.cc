#include "runtime/ps_process.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/bfloat16.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"

namespace evenkeel {
namespace {

constexpr Duration kWaitingLine = std::chrono::seconds(10);  // between two lines that say who is awaited

// Floats of a server's part up to which whoever brings a decision applies it.
constexpr std::int64_t kSmallFloats = 256 << 10;

constexpr int kBatchesInTurn = 64;  // of actions, that one thread carries out on end

class ChiefHandler final : public StreamHandler {
 public:
  ChiefHandler(std::shared_ptr<PsProcess> process, std::uint64_t connection)
      : process_(std::move(process)), connection_(connection) {}
  void OnMessage(Stream&, Message message, const PayloadIn&) override {
    process_->OnChiefMessage(connection_, message);
  }
  void OnClosed(Stream&, const absl::Status& status) override { process_->OnChiefClosed(connection_, status); }

 private:
  const std::shared_ptr<PsProcess> process_;  // a stream's last call may come late
  const std::uint64_t connection_;
};

class WorkerHandler final : public StreamHandler {
 public:
  WorkerHandler(std::shared_ptr<PsProcess> process, SessionId session)
      : process_(std::move(process)), session_(session) {}

  std::span<std::byte> Destination(Stream&, const Message& message, std::size_t payload_bytes) override {
    if (!std::holds_alternative<Stage>(message.body)) return {};
    stripe_ = process_->BeginStage(session_, message, payload_bytes);
    begun_ = true;
    return stripe_ ? stripe_->Into() : std::span<std::byte>();
  }

  void OnMessage(Stream&, Message message, const PayloadIn& payload) override {
    if (!std::holds_alternative<Stage>(message.body)) return process_->OnWorkerMessage(session_, message);
    if (!std::exchange(begun_, false)) stripe_ = process_->BeginStage(session_, message, payload.size());
    if (stripe_) process_->EndStage(*stripe_, payload.CopyTo(stripe_->Into()));
    stripe_.reset();
  }

  void OnClosed(Stream&, const absl::Status&) override {
    if (stripe_) process_->EndStage(*stripe_, false);
    stripe_.reset();
    process_->OnWorkerClosed(session_);
  }

 private:
  const std::shared_ptr<PsProcess> process_;  // a stream's last call may come late
  const SessionId session_;
  // Between Destination and the message, or the stream's end.
  bool begun_ = false;
  std::optional<PsProcess::StripeWrite> stripe_;
};

// Of a server that is fenced again and again and gets no place in between.
constexpr int kMaxFruitlessLives = 8;

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::string TimeOfDay(WallTime time) {
  return absl::FormatTime("%H:%M:%S UTC", absl::FromChrono(std::chrono::time_point_cast<std::chrono::seconds>(time)),
                          absl::UTCTimeZone());
}

}  // namespace

PsProcess::PsProcess(PsOptions options, Incarnation former, Duration delay, Transport& transport, Storage& storage,
                     const Clock& clock)
    : options_(std::move(options)),
      former_(former),
      transport_(transport),
      storage_(storage),
      clock_(clock),
      nonce_(options_.nonce != 0 ? options_.nonce : RandomNonce()),
      pool_(options_.threads),
      server_(ps::ServerOptions{
          .name = options_.name, .spec_hash = options_.spec_hash, .chief_address = options_.chief_address}),
      away_since_(clock.Now()),
      away_since_wall_(clock.WallNow()),
      next_attempt_(clock.Now() + delay),
      next_waiting_line_(clock.Now()),
      backoff_(Milliseconds(100), std::chrono::seconds(2), nonce_) {}

Incarnation PsProcess::incarnation() {
  MutexLock lock(mutex_);
  return server_.MakeEnvelope().sender;
}

bool PsProcess::fenced() {
  MutexLock lock(mutex_);
  return server_.fenced();
}

bool PsProcess::had_place() {
  MutexLock lock(mutex_);
  return had_place_;
}

// As the chief's runner: what is left after kBatchesInTurn is the timer's, or the next event's.
void PsProcess::Drain() {
  for (int batches = 0;; ++batches) {
    ps::Actions actions;
    {
      MutexLock lock(mutex_);
      draining_ = !outbox_.empty();
      if (draining_ && batches >= kBatchesInTurn && !result_) {
        draining_ = false;
        timer_.NotifyAll();
        return;
      }
      if (!draining_) return;
      actions.swap(outbox_);
    }
    for (ps::Action& action : actions) {
      std::visit([this](auto&& a) { Do(std::move(a)); }, std::move(action));
    }
  }
}

// A message that cannot be sent is not lost: OnClosed follows, and all that matters is sent again on the next stream.
void PsProcess::Do(ps::SendToChief action) {
  std::shared_ptr<Stream> chief;
  {
    MutexLock lock(mutex_);
    // Before the Welcome nothing may overtake Join on a fresh stream; what was meant for the former one is void. A job
    // that is over welcomes nobody, and is answered.
    const Body& body = action.message.body;
    if (joined_ || std::holds_alternative<Refuse>(body) || std::holds_alternative<Leave>(body)) chief = chief_;
  }
  if (chief) (void)chief->Send(std::move(action.message));
}

void PsProcess::Do(ps::SendToWorker action) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    auto it = sessions_.find(action.session);
    if (it != sessions_.end()) stream = it->second;
  }
  if (stream) (void)stream->Send(std::move(action.message));
}

void PsProcess::Do(ps::CloseWorker action) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    auto it = sessions_.find(action.session);
    if (it != sessions_.end()) stream = it->second;
  }
  if (stream) stream->Close();
}

void PsProcess::Do(ps::RejoinChief action) {
  std::shared_ptr<Stream> chief;
  {
    MutexLock lock(mutex_);
    chief = chief_;
    away_reason_ = action.reason;
  }
  LogWarning(absl::StrCat("joins the chief again: ", action.reason));
  if (chief) chief->Close();
}

std::optional<PsProcess::Serving> PsProcess::ServingTo(SessionId session) {
  MutexLock lock(mutex_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return std::nullopt;
  return Serving{it->second, shard_, server_.MakeEnvelope()};
}

void PsProcess::SendBucket(const Answering& answering, const ps::PinnedVersion& version, std::int32_t bucket) {
  const auto& [stream, shard, envelope] = answering.to;
  const std::span<const float> stripe = shard->StripeOf(version, bucket);
  if (stripe.empty()) return;
  Message message{envelope, PullData{.request = answering.pull.request, .version = version.version, .bucket = bucket}};
  const bool rounded =
      answering.pull.bfloat16 && !shard->place().layout->buckets()[static_cast<std::size_t>(bucket)].statistic;
  if (!rounded) {
    (void)stream->Send(std::move(message), PayloadOut{std::as_bytes(stripe), version.owner});
  } else if (absl::StatusOr<PayloadOut> payload = rounded_.Get(shard, version, bucket); payload.ok()) {
    (void)stream->Send(std::move(message), *std::move(payload));
  } else {
    LogError(absl::StrCat("cannot round ", ToString(version.version), ": ", payload.status().message()));
    RefusePull(*stream, envelope, answering.pull.request);
  }
}

void PsProcess::RefusePull(Stream& stream, const Envelope& envelope, std::uint64_t request) const {
  (void)stream.Send({envelope, Refuse{.message = absl::StrCat(options_.name, ": pull ", request,
                                                              " came while the parameters were replaced")}});
}

// The first layers' buckets are the last ones.
void PsProcess::Do(ps::ServePull action) {
  const std::optional<Serving> serving = ServingTo(action.session);
  if (!serving) return;
  const auto& [stream, shard, envelope] = *serving;
  if (!shard) return RefusePull(*stream, envelope, action.request);
  const ps::PinnedVersion version = shard->Newest();
  const Answering answering{action, *serving};
  for (auto b = static_cast<std::int32_t>(shard->place().layout->buckets().size()); b-- > 0;) {
    SendBucket(answering, version, b);
  }
  (void)stream->Send({envelope, PullData{.request = action.request, .version = version.version, .bucket = -1}});
}

void PsProcess::Do(ps::Finish action) {
  MutexLock lock(mutex_);
  if (!result_) result_ = std::move(action.status);
  timer_.NotifyAll();
}

void PsProcess::Do(ps::LogLine action) { Log(action.level, action.text); }

// Two wake-ups more would take longer than a small update does.
void PsProcess::Do(ps::ApplyDecision action) {
  {
    MutexLock lock(mutex_);
    const bool small = shard_ && shard_->floats() <= kSmallFloats;
    if (!small || working_ || !work_.empty() || stopping_) {
      work_.emplace_back(std::move(action));
      work_ready_.NotifyOne();
      return;
    }
    working_ = true;
  }
  Run(action);
  MutexLock lock(mutex_);
  working_ = false;
  if (!work_.empty()) work_ready_.NotifyOne();
}

void PsProcess::Queue(Work work) {
  MutexLock lock(mutex_);
  work_.push_back(std::move(work));
  work_ready_.NotifyOne();
}

void PsProcess::OnChiefMessage(std::uint64_t connection, const Message& message) {
  Turn([&]() -> ps::Actions {
    if (connection != connection_) return {};  // of a stream that was given up
    const TimePoint now = clock_.Now();
    renewal_.Heard(now);
    ps::Actions actions = server_.OnChiefMessage(message, now);
    had_place_ |= std::holds_alternative<Configure>(message.body) || std::holds_alternative<Prepare>(message.body);
    const auto* welcome = std::get_if<Welcome>(&message.body);
    if (welcome != nullptr && message.envelope.term == server_.MakeEnvelope().term) {
      joined_ = true;
      backoff_.Reset();
      renewal_.Begin(*welcome, now);
      timer_.NotifyAll();
    }
    const auto* waiting = std::get_if<Waiting>(&message.body);
    if (waiting != nullptr && !joined_) {  // it is there, and has said until when it answers
      const Duration within = Milliseconds(waiting->deadline_ms);
      away_since_ = next_waiting_line_ = now + within;
      away_since_wall_ = clock_.WallNow() + std::chrono::duration_cast<WallTime::duration>(within);
    }
    return actions;
  });
}

void PsProcess::OnChiefClosed(std::uint64_t connection, const absl::Status& status) {
  MutexLock lock(mutex_);
  if (connection != connection_) return;
  LoseChief(clock_.Now(), status);
}

void PsProcess::LoseChief(TimePoint since, const absl::Status& status) {
  const TimePoint now = clock_.Now();
  if (joined_ || away_since_ > now) {  // or before it has answered, as it had said that it would
    const TimePoint from = std::min(since, now);
    away_since_ = from;
    away_since_wall_ = clock_.WallNow() - std::chrono::duration_cast<WallTime::duration>(now - from);
    next_waiting_line_ = now;
  }
  if (!status.ok()) away_reason_ = std::string(status.message());
  joined_ = false;
  chief_open_ = false;
  chief_.reset();
  renewal_.End();
  next_attempt_ = now + backoff_.Next();
  timer_.NotifyAll();
  chief_closed_.NotifyAll();
}

void PsProcess::OnWorkerMessage(SessionId session, const Message& message) {
  Turn([&] {
    ps::Actions actions = server_.OnWorkerMessage(session, message, clock_.Now());
    if (NextWake() < timer_wakes_) timer_.NotifyAll();  // a held pull has a deadline
    return actions;
  });
}

std::optional<PsProcess::StripeWrite> PsProcess::BeginStage(SessionId session, const Message& stage,
                                                            std::size_t payload_bytes) {
  std::optional<StripeWrite> stripe;
  Turn([&] {
    ps::StageAnswer answer =
        server_.BeginStage(session, stage.envelope, std::get<Stage>(stage.body), payload_bytes, clock_.Now());
    if (answer.write) stripe = StripeWrite{*answer.write, shard_};
    return std::move(answer.actions);
  });
  return stripe;
}

std::span<std::byte> PsProcess::StripeWrite::Into() const {
  const std::span<float> sums = shard->StageInto(write.slot, write.bucket);
  return write.mean_of > 0 ? std::as_writable_bytes(UpperHalf(sums)) : std::as_writable_bytes(sums);
}

void PsProcess::StripeWrite::Expand() const {
  if (write.mean_of <= 0) return;
  const std::span<float> sums = shard->StageInto(write.slot, write.bucket);
  DecodeSums(UpperHalf(sums), write.mean_of, sums);
}

void PsProcess::EndStage(const StripeWrite& stripe, bool whole) {
  if (whole) stripe.Expand();
  if (TimelineOn()) {
    const std::string what = stripe.write.closing ? "all buckets" : absl::StrCat("bucket ", stripe.write.bucket);
    TimelineMark("staged", absl::StrCat(what, " of ", ToString(stripe.write.update), whole ? "" : ", in part"),
                 clock_.Now());
  }
  Turn([&] { return server_.EndStage(stripe.write, whole, clock_.Now()); });
}

void PsProcess::OnWorkerClosed(SessionId session) {
  Turn([&] {
    sessions_.erase(session);
    return server_.OnWorkerClosed(session, clock_.Now());
  });
}

absl::Status PsProcess::Listen() {
  auto listener = transport_.Listen(Service::kParameterServer, options_.listen_address,
                                    [self = shared_from_this()](std::shared_ptr<Stream> stream) {
                                      MutexLock lock(self->mutex_);
                                      SessionId session(self->next_session_++);
                                      self->sessions_[session] = std::move(stream);
                                      return std::make_shared<WorkerHandler>(self, session);
                                    });
  EK_RETURN_IF_ERROR(Annotate(listener.status(), absl::StrCat("[ps] cannot serve at ", options_.listen_address)));
  listener_ = *std::move(listener);
  std::string host = options_.advertised_host.empty() ? HostOf(options_.listen_address) : options_.advertised_host;
  if (host.find(':') != std::string::npos && host.front() != '[') host = absl::StrCat("[", host, "]");  // IPv6
  // In-process addresses are names without ports.
  address_ = listener_->port() == 0 ? options_.listen_address : absl::StrCat(host, ":", listener_->port());
  LogInfo(absl::StrCat("serves workers at ", address_));
  return absl::OkStatus();
}

// The stream is known before its Join goes out: the chief's answers may come, and be answered, at once.
void PsProcess::Connect() {
  std::uint64_t connection = 0;
  Message join;
  Holding holding;
  {
    MutexLock lock(mutex_);
    connection = ++connection_;
    chief_open_ = true;
    join.envelope = server_.MakeEnvelope();
    holding = server_.Holds();
  }
  join.body = Join{.role = Role::kPs,
                   .name = options_.name,
                   .index = options_.index,
                   .nonce = nonce_,
                   .experiment_json = options_.experiment_json,
                   .address = address_,
                   .holding = holding,
                   .former = former_};
  std::shared_ptr<Stream> stream =
      transport_.Connect(Service::kChief, options_.chief_address,
                         std::make_shared<ChiefHandler>(shared_from_this(), connection), options_.connect_timeout);
  {
    MutexLock lock(mutex_);
    if (chief_open_ && connection == connection_) chief_ = stream;
  }
  (void)stream->Send(std::move(join));
}

void PsProcess::CheckChief(TimePoint now, bool& connect, ps::Actions& actions) {
  const TimePoint deadline = away_since_ + options_.chief_timeout;
  if (now >= deadline) {
    result_ = absl::DeadlineExceededError(absl::StrCat(
        "[ps] gave up waiting for the chief at ", options_.chief_address, ": away since ", TimeOfDay(away_since_wall_),
        ", chief_timeout is ", absl::StrFormat("%.3g", ToSeconds(options_.chief_timeout)), " s",
        away_reason_.empty() ? "" : absl::StrCat("; last: ", away_reason_)));
    return;
  }
  connect = !chief_open_ && now >= next_attempt_;
  if (now >= next_waiting_line_) {
    next_waiting_line_ = now + kWaitingLine;
    actions.push_back(ps::LogLine{LogLevel::kInfo, absl::StrFormat("waiting for the chief at %s, at most %.1f s",
                                                                   options_.chief_address, ToSeconds(deadline - now))});
  }
}

void PsProcess::Step() {
  bool connect = false;
  std::shared_ptr<Stream> silent;
  Turn([&] {
    const TimePoint now = clock_.Now();
    ps::Actions actions;
    if (result_) return actions;
    if (stop_requested_ && stop_at_ == kNever) {
      stop_at_ = server_.welcomed() ? now + options_.stop_grace : now;  // its stream may be broken just now
      actions = server_.AskToLeave("told to stop", now);
      actions.push_back(ps::LogLine{LogLevel::kInfo, "told to stop; waits for its stripes to move, or the job's end"});
    }
    if (now >= stop_at_) {
      if (joined_) {
        actions.push_back(ps::SendToChief{{server_.MakeEnvelope(), Leave{.reason = "told to stop"}}});
      }
      if (options_.stop_grace > Duration::zero() && server_.welcomed()) {
        actions.push_back(
            ps::LogLine{LogLevel::kWarning, absl::StrFormat("leaves after %.1f s with its stripes: nobody "
                                                            "has taken them",
                                                            ToSeconds(options_.stop_grace))});
      }
      actions.push_back(ps::Finish{absl::OkStatus()});
      stop_at_ = kNever;
      stop_requested_ = false;
      return actions;
    }
    if (now >= renewal_.next()) {
      if (renewal_.Due(now)) {
        actions.push_back(ps::SendToChief{{server_.MakeEnvelope(), server_.State(now)}});
      } else {
        // Its stream is open, but nobody answers there.
        silent = std::move(chief_);
        ++connection_;
        LoseChief(renewal_.heard(), absl::UnavailableError(absl::StrFormat("it has not answered for %.1f s",
                                                                           ToSeconds(now - renewal_.heard()))));
      }
    }
    if (!joined_) CheckChief(now, connect, actions);
    if (now >= server_.NextDeadline()) {
      ps::Actions late = server_.Tick(now);
      std::move(late.begin(), late.end(), std::back_inserter(actions));
    }
    return actions;
  });
  if (silent) silent->Close();
  if (connect) Connect();
}

TimePoint PsProcess::NextWake() const {
  TimePoint next = std::min({server_.NextDeadline(), renewal_.next(), stop_at_});
  if (joined_) return next;
  next = std::min({next, next_waiting_line_, away_since_ + options_.chief_timeout});
  return chief_open_ ? next : std::min(next, next_attempt_);
}

absl::Status PsProcess::Run(StopSource& stop) {
  EK_RETURN_IF_ERROR(Listen());
  apply_thread_ = std::thread([this] { ApplyLoop(); });
  side_thread_ = std::thread([this] { SideLoop(); });
  const int subscription = stop.Subscribe([this] {
    MutexLock lock(mutex_);
    stop_requested_ = true;
    timer_.NotifyAll();
  });
  for (;;) {
    Step();
    MutexLock lock(mutex_);
    if (result_) break;
    const bool news = stop_requested_ && stop_at_ == kNever;
    const bool left = !draining_ && !outbox_.empty();
    if (news || left) continue;
    timer_wakes_ = NextWake();
    timer_.WaitUntil(mutex_, timer_wakes_);
    timer_wakes_ = TimePoint::min();
  }
  stop.Unsubscribe(subscription);
  bool left = false;
  {
    MutexLock lock(mutex_);
    left = server_.released();
  }
  if (left && options_.on_left) options_.on_left();
  Shutdown();
  MutexLock lock(mutex_);
  absl::Status result = *std::move(result_);
  result_.reset();
  return result;
}

// A snapshot under way is finished; work not begun is dropped. Then what is queued goes out, within `drain`.
void PsProcess::Shutdown() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_ready_.NotifyAll();
    side_ready_.NotifyAll();
  }
  apply_thread_.join();
  side_thread_.join();
  Forget(0);
  std::shared_ptr<Stream> chief;
  bool answers = false;
  {
    MutexLock lock(mutex_);
    chief = chief_;
    answers = joined_;
  }
  if (chief) chief->Close();
  listener_->Shutdown(options_.drain);
  listener_.reset();  // and with it its hold on this object
  const TimePoint deadline = clock_.Now() + options_.drain;
  MutexLock lock(mutex_);
  while (answers && chief_ && chief_closed_.WaitUntil(mutex_, deadline)) {
  }
  ++connection_;  // whatever still comes on the former one is ignored
  chief_.reset();
  sessions_.clear();
  shard_.reset();
}

absl::Status RunPs(const PsOptions& options, Transport& transport, Storage& storage, const Clock& clock,
                   StopSource& stop) {
  if (options.threads < 1 || options.threads > 256) {
    return absl::InvalidArgumentError(absl::StrCat("[ps] threads is ", options.threads, "; 1 to 256 are possible"));
  }
  Backoff delays(Milliseconds(100), std::chrono::seconds(5), RandomNonce());
  Incarnation former;
  Duration delay = Duration::zero();
  PsOptions life = options;
  for (int fruitless = 0;;) {
    const auto process = std::make_shared<PsProcess>(life, former, delay, transport, storage, clock);
    absl::Status status = process->Run(stop);
    fruitless = process->had_place() ? 0 : fruitless + 1;
    if (status.ok() || !process->fenced() || stop.requested() || fruitless > kMaxFruitlessLives) return status;
    LogWarning(absl::StrCat(status.message(), "; joining again as a new incarnation, with nothing"));
    former = process->incarnation();
    delay = fruitless == 0 ? Duration::zero() : delays.Next();
    life.nonce = 0;
  }
}

}  // namespace evenkeel
