#include "evenkeel/worker/worker.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/data/dataset.h"
#include "evenkeel/kernels/backend.h"
#include "evenkeel/model/model.h"
#include "evenkeel/protocol/member_session.h"
#include "worker/batch_loader.h"
#include "worker/server_link.h"
#include "worker/step_buffers.h"

namespace evenkeel {
namespace {

// Before asking a server again that said "retry".
constexpr Duration kRetryPause = std::chrono::milliseconds(5);

class Worker {
 public:
  Worker(const WorkerOptions& options, Transport& transport, const Clock& clock, StopSource& stop)
      : options_(options), transport_(transport), clock_(clock), stop_(stop) {}
  ~Worker();

  absl::Status Run();

 private:
  // --- callbacks, from the transport's threads
  void OnChiefMessage(Message message);
  void OnServerMessage(int server, Message message, const PayloadIn& payload);
  void OnWelcome(const Welcome& welcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Supersede() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status);

  // --- the step loop's thread
  absl::Status OpenModel();
  absl::Status Connect();
  absl::Status Loop();
  absl::Status Step(const Ticket& ticket);
  absl::Status PullParameters(const Ticket& ticket, double* seconds);
  absl::StatusOr<StepResult> Compute(const Ticket& ticket, const Batch& batch);
  void StageBucket(UpdateId update, int bucket, int server);
  void StageAll(int server);
  void StageClosing(int server);
  absl::Status AwaitOutcome(UpdateId update);
  void ReadAhead();
  absl::Status LeaveInOrder();
  bool Cancelled(UpdateId update);
  // Waits for `done` (called under the lock), keeping the links up. Returns early, with end_, once that is set: ok
  // where the job ended well, so look at end_ too.
  template <class Done>
  absl::Status WaitFor(const std::string& what, TimePoint deadline, Done done, bool needs_servers = true);
  std::unique_ptr<ServerLink> MakeLink(std::size_t index, const ServerAddress& address);
  void FollowServers();
  void SayReady();
  bool AllUp() const;
  void Doing(const std::string& what) { session_->SetState(what); }
  int server_count() const { return static_cast<int>(links_.size()); }

  // Constant after construction.
  const WorkerOptions& options_;
  Transport& transport_;
  const Clock& clock_;
  StopSource& stop_;

  // The step loop's own.
  OpenedData data_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<BatchLoader> loader_;
  std::vector<std::unique_ptr<ServerLink>> links_;
  std::vector<ServerAddress> servers_;  // that the links lead to
  std::unique_ptr<MemberSession> session_;
  std::optional<UpdateId> requested_;  // from the loader, newest
  std::vector<std::uint64_t> row_keys_;
  CsrView sparse_;

  // Gradients that servers may ask for again: everything up to the outcome.
  struct Staging {
    UpdateId update;
    StepResult result;
  };

  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // the job or the session is over
  std::optional<Welcome> welcome_ ABSL_GUARDED_BY(mutex_);
  bool ready_due_ ABSL_GUARDED_BY(mutex_) = false;  // after each Welcome, once all servers are connected
  std::optional<std::vector<ServerAddress>> moved_servers_ ABSL_GUARDED_BY(mutex_);  // not looked at yet
  bool renewed_ ABSL_GUARDED_BY(mutex_) = false;  // a new incarnation says hello everywhere
  bool stop_asked_ ABSL_GUARDED_BY(mutex_) = false;
  std::string waits_for_ ABSL_GUARDED_BY(mutex_);            // whom the job waits for, as the chief said last
  std::optional<Ticket> bound_ ABSL_GUARDED_BY(mutex_);      // to be computed next
  std::optional<Ticket> ahead_ ABSL_GUARDED_BY(mutex_);      // provisional: its input may be read
  std::optional<UpdateId> current_ ABSL_GUARDED_BY(mutex_);  // in the step loop's hands
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);   // of current_
  Staging staging_ ABSL_GUARDED_BY(mutex_);
  // When to stage everything once more, by server: at once on a fresh stream, after a pause when it said retry.
  std::vector<TimePoint> restage_at_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int, std::vector<std::int32_t>>> missing_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t pull_request_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<bool> pulled_ ABSL_GUARDED_BY(mutex_);        // by server, for pull_request_
  std::vector<TimePoint> pull_at_ ABSL_GUARDED_BY(mutex_);  // when to ask (again), by server
  std::vector<Version> pulled_version_ ABSL_GUARDED_BY(mutex_);
};

Worker::~Worker() {
  // Links ask the session for the envelope; the session's last callbacks need neither.
  links_.clear();
  session_.reset();
  buffers_.reset();
}

void Worker::Fail(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (!end_) end_ = status;
  changed_.NotifyAll();
}

// --- callbacks ------------------------------------------------------------------------------------------------------

void Worker::OnWelcome(const Welcome& welcome) {
  ready_due_ = true;
  if (welcome_) {
    if (welcome.servers.size() != welcome_->servers.size()) {
      if (!end_) end_ = absl::AbortedError("the job has another number of servers now; this worker must start anew");
      return;
    }
    moved_servers_ = welcome.servers;
    if (welcome_->incarnation != welcome.incarnation) {
      // A restarted chief counts anew: what the one before had granted is void.
      renewed_ = true;
      Supersede();
      bound_.reset();
      ahead_.reset();
    }
  }
  welcome_ = welcome;
}

// A bound ticket follows the outcome of the one before; where that was lost with a broken stream, it stands for it.
void Worker::Supersede() {
  if (current_ && !(outcome_ && outcome_->update == *current_)) outcome_ = Outcome{*current_, false, {}};
}

void Worker::OnChiefMessage(Message message) {
  std::string say;
  {
    MutexLock lock(mutex_);
    if (auto* welcome = std::get_if<Welcome>(&message.body)) {
      OnWelcome(*welcome);
    } else if (auto* admitted = std::get_if<Admitted>(&message.body)) {
      say = absl::StrCat("admitted with rank ", admitted->rank.value());
    } else if (auto* waiting = std::get_if<Waiting>(&message.body)) {
      if (!waiting->for_whom.empty() && waiting->for_whom != waits_for_) {
        say = absl::StrCat("the job waits for ", waiting->for_whom);
      }
      waits_for_ = waiting->for_whom;
    } else if (auto* ticket = std::get_if<Ticket>(&message.body)) {
      // A provisional ticket comes behind a bound one that the step loop may not have taken yet.
      if (ticket->bound) {
        ahead_.reset();  // taken back, or become this one
        if (current_ != ticket->update) {
          Supersede();
          bound_ = std::move(*ticket);
        }
      } else {
        ahead_ = std::move(*ticket);
      }
    } else if (auto* bind = std::get_if<Bind>(&message.body)) {
      if (ahead_ && ahead_->update == bind->update) {
        Supersede();
        bound_ = std::exchange(ahead_, std::nullopt);
        bound_->bound = true;
        bound_->version = bind->version;
        bound_->deadline_ms = bind->deadline_ms;
      }
    } else if (auto* outcome = std::get_if<Outcome>(&message.body)) {
      if (current_ == outcome->update) outcome_ = *outcome;
      if (bound_ && bound_->update == outcome->update) bound_.reset();
    } else if (auto* end = std::get_if<JobEnd>(&message.body)) {
      say = absl::StrCat("the job is over: ", end->status, end->message.empty() ? "" : ": ", end->message);
      if (!end_) end_ = end->ok ? absl::OkStatus() : absl::AbortedError(absl::StrCat("the job failed: ", end->message));
    }
    changed_.NotifyAll();
  }
  if (!say.empty()) LogInfo(say);
}

void Worker::OnServerMessage(int server, Message message, const PayloadIn& payload) {
  const auto index = static_cast<std::size_t>(server);
  if (auto* data = std::get_if<PullData>(&message.body)) {
    {
      MutexLock lock(mutex_);
      if (data->request != pull_request_ || pulled_[index]) return;
      pulled_version_[index] = data->version;
      if (data->bucket < 0) {
        pulled_[index] = true;
        changed_.NotifyAll();
        return;
      }
    }
    if (!buffers_->Place(data->bucket, ServerIndex(static_cast<std::uint32_t>(server)), payload)) {
      Fail(absl::InternalError(absl::StrCat("ps:", server, " sent ", payload.size(), " bytes for bucket ", data->bucket,
                                            "; its stripe has another size")));
    }
    return;
  }
  MutexLock lock(mutex_);
  if (auto* ack = std::get_if<StageAck>(&message.body)) {
    if (ack->update == staging_.update && !ack->complete) missing_.emplace_back(server, std::move(ack->missing));
  } else if (auto* refuse = std::get_if<Refuse>(&message.body)) {
    if (refuse->reason == RefuseReason::kRetry) {
      // A pull that came too early, or a stage whose slot is not free yet.
      const TimePoint later = clock_.Now() + kRetryPause;
      if (!pulled_[index]) pull_at_[index] = later;
      if (refuse->update == staging_.update) restage_at_[index] = later;
    } else if (refuse->reason == RefuseReason::kStaleIncarnation || refuse->reason == RefuseReason::kForeignJob) {
      if (!end_) {
        end_ = absl::PermissionDeniedError(
            absl::StrCat("ps:", server, " refused (", ToString(refuse->reason), "): ", refuse->message));
      }
    } else if (current_ && refuse->update == *current_) {
      outcome_ = Outcome{*current_, false, {}};  // void there, so it can never commit
    }
  }
  changed_.NotifyAll();
}

// --- start ----------------------------------------------------------------------------------------------------------

absl::Status Worker::OpenModel() {
  const Experiment& experiment = options_.experiment;
  EK_ASSIGN_OR_RETURN(data_, OpenTrainingData(experiment.input, options_.data_folder));
  if (experiment.train.backend == "reference") {
    backend_ = MakeReferenceBackend(DType::kFloat32);
  } else {
    EK_ASSIGN_OR_RETURN(backend_, MakeCpuBackend(CpuBackendOptions{options_.threads}));
  }
  const ExampleSpec& spec = data_.dataset->spec();
  EK_ASSIGN_OR_RETURN(
      model_, Model::Build(experiment.model, ModelOptions{spec.features, spec.label_width, spec.sparse}, *backend_));
  loader_ = std::make_unique<BatchLoader>(
      *data_.dataset,
      AugmentOptions{experiment.train.seed, experiment.input.flip_horizontal, experiment.input.crop_padding});
  return absl::OkStatus();
}

absl::Status Worker::Connect() {
  const MembershipConfig& membership = options_.experiment.membership;
  MemberSessionOptions session;
  session.chief_address = options_.chief_address;
  session.spec_hash = options_.experiment.spec_hash;
  session.chief_timeout = membership.chief_timeout;
  session.join.role = Role::kWorker;
  session.join.name = options_.name;
  session.join.index = options_.index;
  session.join.nonce = RandomNonce();
  session.join.experiment_json = options_.experiment.canonical_json;
  session.join.samples = data_.dataset->size();
  session.join.data_fingerprint = data_.fingerprint;
  session.join.data_statistics_json = data_.statistics_json;
  session.join.tensors.assign(model_->tensors().begin(), model_->tensors().end());
  session.join.compute_fingerprint = backend_->Fingerprint();
  session_ = std::make_unique<MemberSession>(
      std::move(session), transport_, clock_,
      MemberSession::Callbacks{[this](Message message) { OnChiefMessage(std::move(message)); },
                               [this](const absl::Status& status) { Fail(status); }});
  session_->Start();
  Doing("waiting for the servers");
  EK_RETURN_IF_ERROR(WaitFor("the chief's welcome", kNever,
                             [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return welcome_.has_value() || stop_asked_; }));
  Welcome welcome;
  {
    MutexLock lock(mutex_);
    if (end_ || !welcome_) return absl::OkStatus();
    welcome = *welcome_;
  }
  EK_ASSIGN_OR_RETURN(ParameterLayout layout,
                      ParameterLayout::Create(welcome.tensors, welcome.bucket_bytes,
                                              static_cast<std::uint32_t>(welcome.servers.size())));
  EK_ASSIGN_OR_RETURN(buffers_, StepBuffers::Create(std::move(layout)));
  const std::vector<void*> parameters = buffers_->ParameterPointers();
  const std::vector<void*> gradients = buffers_->GradientPointers();
  EK_RETURN_IF_ERROR(model_->Bind(parameters, gradients));
  {
    MutexLock lock(mutex_);
    pulled_.assign(welcome.servers.size(), true);
    pull_at_.assign(welcome.servers.size(), kNever);
    restage_at_.assign(welcome.servers.size(), kNever);
    pulled_version_.resize(welcome.servers.size());
  }
  for (std::size_t i = 0; i < welcome.servers.size(); ++i) links_.push_back(MakeLink(i, welcome.servers[i]));
  servers_ = welcome.servers;
  EK_RETURN_IF_ERROR(
      WaitFor("the servers", kNever, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stop_asked_ || AllUp(); }));
  return absl::OkStatus();
}

bool Worker::AllUp() const {
  return !links_.empty() && std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->up(); });
}

void Worker::SayReady() {
  {
    MutexLock lock(mutex_);
    if (!ready_due_ || !AllUp()) return;
    ready_due_ = false;
  }
  (void)session_->Send(Ready{});  // where the stream is down, the next Welcome makes it due again
}

std::unique_ptr<ServerLink> Worker::MakeLink(std::size_t index, const ServerAddress& address) {
  const int server = static_cast<int>(index);
  return std::make_unique<ServerLink>(absl::StrCat("ps:", index), address.address, options_.name, transport_, clock_,
                                      ServerLink::Callbacks{[this] { return session_->envelope(); },
                                                            [this, index] {
                                                              MutexLock lock(mutex_);
                                                              const TimePoint now = clock_.Now();
                                                              if (!pulled_[index]) pull_at_[index] = now;
                                                              restage_at_[index] = now;
                                                              changed_.NotifyAll();
                                                            },
                                                            [this] {
                                                              MutexLock lock(mutex_);
                                                              changed_.NotifyAll();
                                                            },
                                                            [this, server](Message message, const PayloadIn& payload) {
                                                              OnServerMessage(server, std::move(message), payload);
                                                            },
                                                            [this](const absl::Status& status) { Fail(status); }});
}

// A server that was lost has a replacement, at the same address or another; or a restarted chief has numbered all anew.
void Worker::FollowServers() {
  std::vector<ServerAddress> now;
  bool all = false;
  {
    MutexLock lock(mutex_);
    if (!moved_servers_ || links_.empty()) return;
    now = *std::exchange(moved_servers_, std::nullopt);
    all = std::exchange(renewed_, false);
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (now[i].incarnation == servers_[i].incarnation && !all) continue;
    if (now[i].address != servers_[i].address) LogInfo(absl::StrCat("ps:", i, " is now at ", now[i].address));
    links_[i]->Close();
    links_[i] = MakeLink(i, now[i]);
    servers_[i] = now[i];
  }
}

template <class Done>
absl::Status Worker::WaitFor(const std::string& what, TimePoint deadline, Done done, bool needs_servers) {
  const Duration ps_timeout = options_.experiment.membership.ps_timeout;
  for (;;) {
    FollowServers();
    for (auto& link : links_) link->Poll();
    SayReady();
    MutexLock lock(mutex_);
    for (;;) {
      if (end_) return *end_;
      if (done()) return absl::OkStatus();
      const TimePoint now = clock_.Now();
      if (now >= deadline) return absl::DeadlineExceededError(absl::StrCat("waited too long for ", what));
      TimePoint wake = deadline;
      for (TimePoint due : pull_at_) wake = std::min(wake, due > now ? due : kNever);
      for (TimePoint due : restage_at_) wake = std::min(wake, due > now ? due : kNever);
      TimePoint attempt = kNever;
      for (const auto& link : links_) {
        attempt = std::min(attempt, link->NextAttempt());
        const TimePoint down = link->down_since();
        if (down == kNever || !needs_servers) continue;
        if (down + ps_timeout <= now) {
          return absl::DeadlineExceededError(absl::StrFormat("waited %.1f s for %s at %s, while waiting for %s: %s",
                                                             ToSeconds(ps_timeout), link->server(), link->address(),
                                                             what, link->last_error()));
        }
        wake = std::min(wake, down + ps_timeout);
      }
      if (attempt <= now || (moved_servers_ && !links_.empty()) || (ready_due_ && AllUp())) break;
      changed_.WaitUntil(mutex_, std::min(wake, attempt));
    }
  }
}

// --- a step ---------------------------------------------------------------------------------------------------------

bool Worker::Cancelled(UpdateId update) {
  MutexLock lock(mutex_);
  return end_.has_value() || (outcome_ && outcome_->update == update);
}

absl::Status Worker::PullParameters(const Ticket& ticket, double* seconds) {
  const TimePoint start = clock_.Now();
  {
    MutexLock lock(mutex_);
    ++pull_request_;
    pulled_.assign(pulled_.size(), false);
    pull_at_.assign(pull_at_.size(), start);
  }
  for (;;) {
    std::vector<int> ask;
    std::uint64_t request;
    {
      MutexLock lock(mutex_);
      request = pull_request_;
      for (std::size_t i = 0; i < pull_at_.size(); ++i) {
        if (pull_at_[i] <= clock_.Now() && links_[i]->up()) {
          ask.push_back(static_cast<int>(i));
          pull_at_[i] = kNever;
        }
      }
    }
    for (int server : ask) {
      (void)links_[static_cast<std::size_t>(server)]->Send(Pull{request, ticket.version, ticket.deadline_ms});
    }
    EK_RETURN_IF_ERROR(
        WaitFor(absl::StrCat("version ", ToString(ticket.version)), kNever, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          if (outcome_ && outcome_->update == *current_) return true;
          bool all = true;
          for (std::size_t i = 0; i < pulled_.size(); ++i) {
            if (pull_at_[i] <= clock_.Now() && links_[i]->up()) return true;
            all = all && pulled_[i];
          }
          return all;
        }));
    MutexLock lock(mutex_);
    const bool cancelled = end_ || (outcome_ && outcome_->update == ticket.update);
    if (cancelled || std::find(pulled_.begin(), pulled_.end(), false) == pulled_.end()) break;
  }
  *seconds = ToSeconds(clock_.Now() - start);
  return absl::OkStatus();
}

void Worker::StageBucket(UpdateId update, int bucket, int server) {
  const auto index = ServerIndex(static_cast<std::uint32_t>(server));
  if (buffers_->layout().StripeOf(bucket, index).size() == 0) return;
  Stage stage;
  stage.update = update;
  stage.bucket = bucket;
  // A link that is down restages everything once it is up again.
  (void)links_[static_cast<std::size_t>(server)]->Send(std::move(stage), buffers_->Gradient(bucket, index));
}

void Worker::StageClosing(int server) {
  Stage stage;
  {
    MutexLock lock(mutex_);
    stage.update = staging_.update;
    stage.bucket = -1;
    stage.closing = true;
    stage.samples = staging_.result.samples;
    stage.loss_sum = staging_.result.loss_sum;
    stage.non_finite = staging_.result.non_finite;
    stage.non_finite_layer = staging_.result.non_finite_layer;
    stage.computed_on = pulled_version_[static_cast<std::size_t>(server)];
  }
  (void)links_[static_cast<std::size_t>(server)]->Send(std::move(stage));
}

void Worker::StageAll(int server) {
  UpdateId update;
  {
    MutexLock lock(mutex_);
    update = staging_.update;
  }
  for (int bucket = 0; bucket < static_cast<int>(buffers_->layout().buckets().size()); ++bucket) {
    StageBucket(update, bucket, server);
  }
  StageClosing(server);
}

absl::StatusOr<StepResult> Worker::Compute(const Ticket& ticket, const Batch& batch) {
  ModelInput input;
  input.batch = batch.size();
  if (data_.dataset->spec().sparse) {
    sparse_ = CsrView{batch.size(), data_.dataset->spec().features[0], batch.row_offsets, batch.columns, batch.values};
    input.sparse = &sparse_;
  } else {
    input.features = batch.features;
  }
  input.labels = batch.labels;
  MixRowKeys(batch, options_.experiment.train.seed, row_keys_);
  input.row_keys = row_keys_;
  model_->ParametersChanged();
  return model_->TrainStep(input, [&](int tensor) {
    buffers_->TensorReady(tensor, [&](int bucket) {
      if (Cancelled(ticket.update)) return;
      for (int server = 0; server < server_count(); ++server) StageBucket(ticket.update, bucket, server);
    });
  });
}

absl::Status Worker::Step(const Ticket& ticket) {
  Doing(absl::StrCat("pulling ", ToString(ticket.version)));
  StepReport report;
  report.update = ticket.update;
  EK_RETURN_IF_ERROR(PullParameters(ticket, &report.pull_seconds));
  if (Cancelled(ticket.update)) return absl::OkStatus();

  Doing("computing");
  TimePoint at = clock_.Now();
  EK_ASSIGN_OR_RETURN(const Batch* batch, loader_->Take(ticket.update));
  report.input_seconds = ToSeconds(clock_.Now() - at);
  ReadAhead();
  const TimePoint deadline = clock_.Now() + Milliseconds(ticket.deadline_ms);
  if (!buffers_->BeginStep(deadline)) {
    return absl::DeadlineExceededError("the servers did not take the last step's gradients in time");
  }
  {
    MutexLock lock(mutex_);
    staging_.update = ticket.update;
    restage_at_.assign(restage_at_.size(), kNever);
    missing_.clear();
  }
  at = clock_.Now();
  EK_ASSIGN_OR_RETURN(const StepResult result, Compute(ticket, *batch));
  report.compute_seconds = ToSeconds(clock_.Now() - at);
  report.samples = result.samples;
  at = clock_.Now();
  {
    MutexLock lock(mutex_);
    staging_.result = result;
  }
  if (Cancelled(ticket.update)) return absl::OkStatus();
  for (int server = 0; server < server_count(); ++server) StageClosing(server);
  report.stage_seconds = ToSeconds(clock_.Now() - at);
  (void)session_->Send(report);  // only informs
  return AwaitOutcome(ticket.update);
}

absl::Status Worker::AwaitOutcome(UpdateId update) {
  Doing(absl::StrCat("waiting for the outcome of ", ToString(update)));
  for (;;) {
    EK_RETURN_IF_ERROR(
        WaitFor(absl::StrCat("the outcome of ", ToString(update)), kNever, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          const TimePoint now = clock_.Now();
          return (outcome_ && outcome_->update == update) || !missing_.empty() ||
                 (ahead_ && ahead_->update != requested_) ||
                 std::any_of(restage_at_.begin(), restage_at_.end(), [now](TimePoint due) { return due <= now; });
        }));
    ReadAhead();
    std::vector<int> restage;
    std::vector<std::pair<int, std::vector<std::int32_t>>> missing;
    {
      MutexLock lock(mutex_);
      if (end_ || (outcome_ && outcome_->update == update)) return absl::OkStatus();
      for (std::size_t i = 0; i < restage_at_.size(); ++i) {
        if (restage_at_[i] > clock_.Now()) continue;
        restage.push_back(static_cast<int>(i));
        restage_at_[i] = kNever;
      }
      missing.swap(missing_);
    }
    for (int server : restage) StageAll(server);
    for (const auto& [server, buckets] : missing) {
      for (std::int32_t bucket : buckets) StageBucket(update, bucket, server);
      StageClosing(server);
    }
  }
}

// --- the loop -------------------------------------------------------------------------------------------------------

absl::Status Worker::Loop() {
  for (;;) {
    Doing("waiting for a ticket");
    EK_RETURN_IF_ERROR(WaitFor(
        "a ticket", kNever,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return stop_asked_ || bound_ || (ahead_ && ahead_->update != requested_);
        },
        /*needs_servers=*/false));
    std::optional<Ticket> ticket;
    {
      MutexLock lock(mutex_);
      if (end_ || stop_asked_) return absl::OkStatus();
      ticket = std::exchange(bound_, std::nullopt);
      if (ticket) {
        current_ = ticket->update;
        outcome_.reset();
      }
    }
    if (!ticket) {
      ReadAhead();
      continue;
    }
    if (requested_ != ticket->update) {
      loader_->Request(ticket->update, ticket->epoch, ticket->positions);
      requested_ = ticket->update;
    }
    EK_RETURN_IF_ERROR(Step(*ticket));
    MutexLock lock(mutex_);
    current_.reset();
  }
}

// Has the provisional ticket's samples read, if that is not asked for yet.
void Worker::ReadAhead() {
  std::optional<Ticket> ahead;
  {
    MutexLock lock(mutex_);
    ahead = ahead_;
  }
  if (!ahead || requested_ == ahead->update) return;
  loader_->Request(ahead->update, ahead->epoch, ahead->positions);
  requested_ = ahead->update;
}

absl::Status Worker::LeaveInOrder() {
  LogInfo(absl::StrCat("leaving: ", stop_.reason()));
  for (auto& link : links_) link->Close();  // servers hear of the leave from the chief; their refusals say nothing new
  session_->Leave(stop_.reason(), options_.experiment.membership.drain);
  const absl::Status status =
      WaitFor("the chief's goodbye", clock_.Now() + options_.experiment.membership.drain, [] { return false; });
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

absl::Status Worker::Run() {
  EK_RETURN_IF_ERROR(OpenModel());
  const int subscription = stop_.Subscribe([this] {
    MutexLock lock(mutex_);
    stop_asked_ = true;
    changed_.NotifyAll();
  });
  absl::Status status = Connect();
  if (status.ok()) status = Loop();
  bool ended = false;
  {
    MutexLock lock(mutex_);
    ended = end_.has_value();
  }
  if (status.ok() && !ended) status = LeaveInOrder();
  stop_.Unsubscribe(subscription);
  return status;
}

}  // namespace

absl::Status RunWorker(const WorkerOptions& options, Transport& transport, const Clock& clock, StopSource& stop) {
  return Worker(options, transport, clock, stop).Run();
}

}  // namespace evenkeel
