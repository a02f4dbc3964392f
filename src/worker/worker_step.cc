// A step: pull the version, compute, stage on every server, learn what became of it.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"
#include "worker/worker_impl.h"

namespace evenkeel::worker_internal {
namespace {

// A step's time is smoothed with this weight of the newest.
constexpr double kSmoothing = 0.3;
// Between looks at what memory the machine has left.
constexpr Duration kMemoryPause = std::chrono::seconds(1);
// Inputs at a time: the step's, and the next one's.
constexpr std::int64_t kBatchesHeld = 2;

constexpr std::string_view kTrack = "step";  // of the timeline

}  // namespace

void LayerTimeline::Begins(std::string_view, Pass) { began_ = Clock::Real().Now(); }

void LayerTimeline::Ended(std::string_view layer, Pass pass) {
  TimelineSpan(kTrack, absl::StrCat(pass == Pass::kForward ? "forward " : "backward ", std::string(layer)), began_,
               Clock::Real().Now());
}

bool Worker::Cancelled(UpdateId update) {
  MutexLock lock(mutex_);
  return end_.has_value() || (outcome_ && outcome_->update == update);
}

// No server's answer of an earlier pull counts; each is to be asked at `when`.
void Worker::BeginPull(TimePoint when) {
  const ParameterLayout& layout = buffers_->layout();
  const std::size_t buckets = layout.buckets().size(), servers = links_.size();
  ++pull_request_;
  pull_began_ = clock_.Now();
  torn_pull_ = false;
  pulled_.assign(servers, false);
  pull_at_.assign(servers, when);
  pulled_version_.assign(servers, Version{});
  stripe_here_.assign(servers * buckets, false);
  stripes_missing_.assign(buckets, 0);
  for (std::size_t b = 0; b < buckets; ++b) {
    for (std::size_t s = 0; s < servers; ++s) {
      const Stripe& stripe = layout.StripeOf(static_cast<int>(b), ServerIndex(static_cast<std::uint32_t>(s)));
      if (stripe.size() > 0) ++stripes_missing_[b];
    }
  }
}

Pull Worker::PullOf(const Ticket& ticket, std::uint64_t request, Version version) const {
  return Pull{request, version, ticket.deadline_ms,
              options_.experiment.train.parameter_wire_dtype == WireDtype::kBfloat16};
}

// The next version, before the next ticket says so: servers send it as they make it, while the chief's word is under
// way. In BSP nothing else can come next but this version again, where the step is dropped, or another generation's.
void Worker::PullAhead(const Ticket& ticket, Version next) {
  const SyncConfig& sync = options_.experiment.train.sync;
  if (sync.mode != SyncConfig::Mode::kBsp || sync.backup_workers > 0) return;
  std::uint64_t request = 0;
  std::vector<bool> up;
  {
    MutexLock lock(mutex_);
    if (stop_asked_) return;
    for (const auto& link : links_) up.push_back(link->stream->up());
    BeginPull(clock_.Now());
    for (std::size_t i = 0; i < up.size(); ++i) {
      if (up[i]) pull_at_[i] = kNever;
    }
    asked_ahead_ = next;
    request = pull_request_;
  }
  for (std::size_t i = 0; i < up.size(); ++i) {
    if (up[i]) (void)links_[i]->stream->Send(PullOf(ticket, request, next));
  }
}

// Asks who is to be asked, until `done` (called under the lock), or until the update is decided or the pull torn.
absl::Status Worker::PullUntil(const Ticket& ticket, const std::function<bool()>& done) {
  for (;;) {
    std::vector<int> ask;
    std::uint64_t request;
    {
      MutexLock lock(mutex_);
      if (torn_pull_) return absl::OkStatus();
      request = pull_request_;
      for (std::size_t i = 0; i < pull_at_.size(); ++i) {
        if (pull_at_[i] <= clock_.Now() && links_[i]->stream->up()) {
          ask.push_back(static_cast<int>(i));
          pull_at_[i] = kNever;
        }
      }
    }
    for (int server : ask) {
      (void)links_[static_cast<std::size_t>(server)]->stream->Send(PullOf(ticket, request, ticket.version));
    }
    const auto over = [this, &ticket]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return torn_pull_ || (outcome_ && outcome_->update == ticket.update);
    };
    EK_RETURN_IF_ERROR(
        WaitFor(absl::StrCat("version ", ToString(ticket.version)), kNever, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          if (done() || over()) return true;
          for (std::size_t i = 0; i < pulled_.size(); ++i) {
            if (pull_at_[i] <= clock_.Now() && links_[i]->stream->up()) return true;
          }
          return false;
        }));
    MutexLock lock(mutex_);
    if (end_ || done() || over()) return absl::OkStatus();
  }
}

bool Worker::AllPulled() const { return std::find(pulled_.begin(), pulled_.end(), false) == pulled_.end(); }

bool Worker::Here(int tensor) const {
  const std::vector<int>& buckets = buffers_->BucketsOf(tensor);
  return std::all_of(buckets.begin(), buckets.end(), [this](int bucket) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stripes_missing_[static_cast<std::size_t>(bucket)] == 0;
  });
}

bool Worker::TornPull() {
  MutexLock lock(mutex_);
  return torn_pull_;
}

// The first layers compute while the parameters of the others are on their way.
absl::Status Worker::AwaitTensor(const Ticket& ticket, int tensor) {
  {
    MutexLock lock(mutex_);
    if (!torn_pull_ && Here(tensor)) return absl::OkStatus();
  }
  const TimePoint begin = clock_.Now();
  Doing(absl::StrCat("pulling ", ToString(ticket.version)));
  EK_RETURN_IF_ERROR(PullUntil(ticket, [this, tensor]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return Here(tensor); }));
  Doing("computing");
  waited_seconds_ += ToSeconds(clock_.Now() - begin);
  TimelineSpan(kTrack, "wait for parameters", begin, clock_.Now());
  MutexLock lock(mutex_);
  if (!torn_pull_ && !end_ && Here(tensor)) return absl::OkStatus();
  return absl::CancelledError("the parameters do not come any more");
}

// Whether all servers have said that they have sent all, each from one version.
bool Worker::PulledWhole(const Ticket& ticket, bool wait) {
  {
    MutexLock lock(mutex_);
    if (torn_pull_ || !wait || AllPulled() || !pull_error_.ok()) return !torn_pull_ && AllPulled();
  }
  const TimePoint begin = clock_.Now();
  pull_error_.Update(PullUntil(ticket, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return AllPulled(); }));
  waited_seconds_ += ToSeconds(clock_.Now() - begin);
  MutexLock lock(mutex_);
  return pull_error_.ok() && !torn_pull_ && AllPulled();
}

void Worker::StageBucket(UpdateId update, std::int64_t samples, int bucket, int server, bool offer) {
  const auto index = ServerIndex(static_cast<std::uint32_t>(server));
  if (buffers_->layout().StripeOf(bucket, index).size() == 0) return;
  Stage stage;
  stage.update = update;
  stage.bucket = bucket;
  stage.offered = offer;
  if (buffers_->Means(bucket)) stage.mean_of = samples;
  if (TimelineOn()) {
    TimelineMark(kTrack, absl::StrCat(offer ? "offer" : "stage", " bucket ", bucket, " on ps:", server),
                 Clock::Real().Now());
  }
  // A link that is down restages everything once it is up again.
  if (offer) {
    (void)links_[static_cast<std::size_t>(server)]->stream->Send(std::move(stage));
    return;
  }
  (void)links_[static_cast<std::size_t>(server)]->stream->Send(std::move(stage), buffers_->Gradient(bucket, index));
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
    stage.computed_on = staging_.computed_on[static_cast<std::size_t>(server)];
    stage.feedback = staging_.feedback;
  }
  (void)links_[static_cast<std::size_t>(server)]->stream->Send(std::move(stage));
}

void Worker::StageAll(int server) {
  UpdateId update;
  std::int64_t samples = 0;
  bool offer = false;
  {
    MutexLock lock(mutex_);
    update = staging_.update;
    samples = staging_.samples;
    offer = staging_.offer;
  }
  for (int bucket = 0; bucket < static_cast<int>(buffers_->layout().buckets().size()); ++bucket) {
    StageBucket(update, samples, bucket, server, offer);
  }
  StageClosing(server);
}

ModelInput Worker::InputOf(const Batch& batch) {
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
  return input;
}

void Worker::StageFinished(const Ticket& ticket, std::int64_t samples) {
  for (const int bucket : finished_buckets_) {
    buffers_->Encode(bucket, samples);
    for (int server = 0; server < server_count(); ++server) {
      StageBucket(ticket.update, samples, bucket, server, ticket.offer);
    }
  }
  finished_buckets_.clear();
  StageWhatIsAskedFor();
}

// What servers had no room for when it was offered, or lost. They ask for nothing that is not finished.
void Worker::StageWhatIsAskedFor() {
  std::vector<std::pair<int, std::int32_t>> missing;
  UpdateId update;
  std::int64_t samples = 0;
  {
    MutexLock lock(mutex_);
    if (missing_.empty()) return;
    missing.swap(missing_);
    update = staging_.update;
    samples = staging_.samples;
  }
  std::set<std::pair<int, std::int32_t>> sent;  // a server may have asked anew meanwhile
  for (const auto& [server, bucket] : missing) {
    if (sent.emplace(server, bucket).second) StageBucket(update, samples, bucket, server, /*offer=*/false);
  }
}

// Nothing is staged before it is certain that each server's parameters are all of one version.
absl::StatusOr<StepResult> Worker::Compute(const Ticket& ticket, const Batch& batch) {
  model_->ParametersChanged();
  finished_buckets_.clear();
  pull_error_ = absl::OkStatus();
  const auto ready = [&](int tensor) {
    buffers_->TensorReady(tensor, [this](int bucket) { finished_buckets_.push_back(bucket); });
    if (finished_buckets_.empty() || Cancelled(ticket.update)) return;
    // Statistics are ready while the forward pass still goes on.
    const bool statistic = model_->tensors()[static_cast<std::size_t>(tensor)].statistic;
    if (PulledWhole(ticket, /*wait=*/!statistic)) StageFinished(ticket, batch.size());
  };
  EK_ASSIGN_OR_RETURN(const StepResult result, model_->TrainStep(InputOf(batch), ready, [&](int tensor) {
    return AwaitTensor(ticket, tensor);
  }));
  if (!Cancelled(ticket.update) && PulledWhole(ticket, /*wait=*/true)) StageFinished(ticket, batch.size());
  EK_RETURN_IF_ERROR(pull_error_);
  return result;
}

// Where a server began to send another version in the middle, all is computed again, on one that is here whole.
absl::StatusOr<StepResult> Worker::ComputeOnOneVersion(const Ticket& ticket, const Batch& batch, TimePoint deadline) {
  for (;;) {
    if (!buffers_->BeginStep(deadline)) {
      return absl::DeadlineExceededError("the servers did not take the last step's gradients in time");
    }
    absl::StatusOr<StepResult> result = Compute(ticket, batch);
    bool torn = false;
    while (TornPull() && !Cancelled(ticket.update)) {
      torn = true;
      {
        MutexLock lock(mutex_);
        BeginPull(clock_.Now());
      }
      EK_RETURN_IF_ERROR(PullUntil(ticket, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return AllPulled(); }));
    }
    if (!torn || Cancelled(ticket.update)) return result;
  }
}

// Whenever the model holds more than before.
void Worker::SeeMemory(const Batch& batch) {
  const Model::HeldMemory held = model_->held_memory();
  if (held.samples == memory_seen_) return;
  memory_seen_ = held.samples;
  const std::int64_t input = batch.bytes() * held.samples / batch.size();
  memory_bound_.Observe(held.samples, held.bytes + kBatchesHeld * input);
}

std::int64_t Worker::MemorySamples() const { return memory_bound_.Samples(backend_->AvailableBytes()); }

void Worker::TellMemory() {
  const TimePoint now = clock_.Now();
  if (now - memory_told_ < kMemoryPause) return;
  memory_told_ = now;
  session_->SetMemorySamples(MemorySamples());
}

absl::Status Worker::Step(const Ticket& ticket) {
  const TimelineBlock timeline(kTrack, "step");
  Doing(absl::StrCat("pulling ", ToString(ticket.version)));
  const TimePoint began = clock_.Now();
  {
    MutexLock lock(mutex_);
    step_began_ = began;
  }
  StepReport report;
  report.update = ticket.update;
  {
    MutexLock lock(mutex_);
    if (std::exchange(asked_ahead_, std::nullopt) != ticket.version || torn_pull_) BeginPull(began);
  }
  EK_RETURN_IF_ERROR(PullUntil(ticket, [] { return true; }));  // only asks
  if (Cancelled(ticket.update)) return absl::OkStatus();

  Doing("computing");
  TimePoint at = clock_.Now();
  EK_ASSIGN_OR_RETURN(const Batch* batch, loader_->Take(ticket.update));
  report.input_seconds = ToSeconds(clock_.Now() - at);
  TimelineSpan(kTrack, "wait for the input", at, clock_.Now());
  ReadAhead();
  const TimePoint deadline = clock_.Now() + Milliseconds(ticket.deadline_ms);
  {
    MutexLock lock(mutex_);
    staging_.update = ticket.update;
    staging_.samples = batch->size();
    staging_.offer = ticket.offer;
    if (std::exchange(rest_in_doubt_, false)) rest_of_ = 0;
    staging_.feedback = rest_of_;
    restage_at_.assign(restage_at_.size(), kNever);
    missing_.clear();
  }
  if (rest_of_ == 0) buffers_->DropRest();
  at = clock_.Now();
  waited_seconds_ = 0;
  const absl::StatusOr<StepResult> computed = ComputeOnOneVersion(ticket, *batch, deadline);
  if (Cancelled(ticket.update)) return absl::OkStatus();
  if (!computed.ok()) return computed.status();
  const StepResult& result = *computed;
  report.pull_seconds = waited_seconds_;
  report.compute_seconds = ToSeconds(clock_.Now() - at) - waited_seconds_;
  report.samples = result.samples;
  report.first_of_size = sizes_seen_.Add(result.samples);
  SeeMemory(*batch);
  {
    MutexLock lock(mutex_);
    staging_.result = result;
    staging_.computed_on = pulled_version_;
  }
  (void)session_->Send(report);  // only informs; before the update can commit, so that the next plan knows it
  for (int server = 0; server < server_count(); ++server) StageClosing(server);
  PullAhead(ticket, Version{ticket.version.generation, ticket.version.commit.Next()});
  TellMemory();
  {
    MutexLock lock(mutex_);
    step_began_ = kNever;
    const double seconds = ToSeconds(clock_.Now() - began);
    step_seconds_ += (step_seconds_ > 0 ? kSmoothing : 1) * (seconds - step_seconds_);
  }
  EK_RETURN_IF_ERROR(AwaitOutcome(ticket.update));
  bool committed = false;
  {
    MutexLock lock(mutex_);
    committed = outcome_ && outcome_->update == ticket.update && outcome_->committed;
  }
  if (committed) KeepRest(ticket.update);
  return absl::OkStatus();
}

void Worker::KeepRest(UpdateId update) {
  if (options_.experiment.train.wire_dtype == WireDtype::kFloat32) return;
  buffers_->KeepRest();
  rest_of_ = update.sequence;
}

absl::Status Worker::AwaitOutcome(UpdateId update) {
  const TimelineBlock timeline(kTrack, "wait for the outcome");
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
    {
      MutexLock lock(mutex_);
      if (end_ || (outcome_ && outcome_->update == update)) return absl::OkStatus();
      for (std::size_t i = 0; i < restage_at_.size(); ++i) {
        if (restage_at_[i] > clock_.Now()) continue;
        restage.push_back(static_cast<int>(i));
        restage_at_[i] = kNever;
      }
    }
    for (int server : restage) StageAll(server);
    StageWhatIsAskedFor();
  }
}

}  // namespace evenkeel::worker_internal
