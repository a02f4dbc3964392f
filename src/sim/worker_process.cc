#include "sim/worker_process.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::sim {
namespace {

constexpr Duration kRetryPause = std::chrono::milliseconds(5);

std::uint64_t NumberOf(const std::string& machine) {
  std::uint64_t number = 0;
  (void)absl::SimpleAtoi(machine.substr(machine.find(':') + 1), &number);
  return number;
}

}  // namespace

std::vector<TensorSpec> MakeTensors(const Scenario& scenario) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < scenario.tensor_floats.size(); ++i) {
    TensorSpec tensor;
    tensor.name = absl::StrCat("tensor_", i);
    tensor.shape = Shape{scenario.tensor_floats[i]};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

WorkerProcess::WorkerProcess(Environment& environment, std::string machine, std::uint64_t life)
    : Peer(std::move(machine)),
      environment_(environment),
      nonce_(MixKey(environment.scenario.seed, HashName(this->machine()), life)),
      rng_(environment.NewRng(this->machine(), life)),
      backoff_(Milliseconds(50), std::chrono::seconds(2), nonce_) {
  const auto& costs = environment.scenario.sample_us;
  per_sample_ = std::chrono::microseconds(costs[NumberOf(this->machine()) % costs.size()]);
  envelope_.spec_hash = environment.experiment.spec_hash;
}

void WorkerProcess::Start() {
  lost_since_ = next_attempt_ = now();
  OnTimer();
}

void WorkerProcess::End() {
  if (std::exchange(ended_, true)) return;
  StopComputing();
  if (chief_ != SessionId{}) environment_.network.Close(*this, chief_);
  CloseAll(links_);
  CloseAll(coming_);
}

void WorkerProcess::CloseAll(const std::vector<Link>& links) {
  for (const Link& link : links) {
    if (link.stream != SessionId{}) environment_.network.Close(*this, link.stream);
  }
}

// --- the chief ------------------------------------------------------------------------------------------------------

void WorkerProcess::Connect() {
  welcomed_ = false;
  next_attempt_ = kNever;
  chief_ = environment_.network.Connect(*this, "chief");
  Join join;
  join.name = machine();
  join.nonce = nonce_;
  join.experiment_json = environment_.experiment.canonical_json;
  join.samples = environment_.scenario.samples;
  join.data_fingerprint = "0123456789abcdef";
  join.tensors = MakeTensors(environment_.scenario);
  environment_.network.Send(*this, chief_, {envelope_, std::move(join)});
}

void WorkerProcess::Reconnect() {
  if (!ended_ && !leaving_ && chief_ != SessionId{}) Connect();
}

void WorkerProcess::Leave() {
  if (ended_ || leaving_) return;
  leaving_ = left_ = true;
  StopComputing();
  OnConnectAhead({});
  CloseAll(links_);
  for (Link& link : links_) {
    link.stream = SessionId{};
    link.up = false;
    link.next_attempt = kNever;
  }
  if (!welcomed_) return End();
  ToChief(evenkeel::Leave{"told to"});
  leave_deadline_ = now() + environment_.experiment.membership.drain;
  Advance();
}

void WorkerProcess::ToChief(Body body) {
  if (welcomed_) environment_.network.Send(*this, chief_, {envelope_, std::move(body)});
}

void WorkerProcess::OnMessage(SessionId stream, Message message, Payload) {
  if (ended_) return;
  if (stream == chief_) {
    OnChief(std::move(message));
  } else {
    for (std::vector<Link>* links : {&links_, &coming_}) {
      for (Link& link : *links) {
        if (link.stream == stream) OnServer(link, message, /*ahead=*/links == &coming_);
      }
    }
  }
  Advance();
}

void WorkerProcess::LoseChief(TimePoint since) {
  chief_ = SessionId{};
  welcomed_ = false;
  renewal_.End();
  if (lost_since_ == kNever) lost_since_ = since;
  next_attempt_ = now() + backoff_.Next();
}

void WorkerProcess::OnClosed(SessionId stream) {
  if (ended_) return;
  if (stream == chief_) {
    LoseChief(now());
    if (leaving_ || job_over_) return End();
  }
  for (std::vector<Link>* links : {&links_, &coming_}) {
    for (Link& link : *links) {
      if (link.stream != stream) continue;
      link.stream = SessionId{};
      if (std::exchange(link.up, false)) link.down_since = now();
      link.next_attempt = now() + link.backoff->Next();
    }
  }
  Advance();
}

void WorkerProcess::OnChief(Message message) {
  if (message.envelope.term < envelope_.term) return;
  const bool same_term = message.envelope.term == envelope_.term;
  if (same_term || std::holds_alternative<Welcome>(message.body)) {
    if (!same_term) {
      // What the former chief had granted is void.
      envelope_.membership_epoch = MembershipEpoch{};
      Supersede();
      bound_.reset();
      ahead_.reset();
    }
    envelope_.term = message.envelope.term;
    std::tie(envelope_.generation, envelope_.layout) =
        std::max(std::pair(envelope_.generation, envelope_.layout),
                 std::pair(message.envelope.generation, message.envelope.layout));
    envelope_.membership_epoch = std::max(envelope_.membership_epoch, message.envelope.membership_epoch);
  }
  lost_since_ = kNever;
  renewal_.Heard(now());
  backoff_.Reset();
  if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
    OnWelcome(*welcome);
  } else if (const auto* order = std::get_if<ConnectAhead>(&message.body)) {
    OnConnectAhead(*order);
  } else if (auto* ticket = std::get_if<Ticket>(&message.body)) {
    if (!ticket->bound) {
      ahead_ = std::move(*ticket);
      return;
    }
    ahead_.reset();
    if (current_ && current_->update == ticket->update) return;
    Supersede();
    bound_ = std::move(*ticket);
  } else if (const auto* bind = std::get_if<Bind>(&message.body)) {
    if (!ahead_ || ahead_->update != bind->update) return;
    Supersede();
    bound_ = std::exchange(ahead_, std::nullopt);
    bound_->version = bind->version;
    bound_->deadline_ms = bind->deadline_ms;
    bound_->offer = bind->offer;
  } else if (const auto* outcome = std::get_if<Outcome>(&message.body)) {
    if (current_ && current_->update == outcome->update) outcome_ = *outcome;
    if (bound_ && bound_->update == outcome->update) bound_.reset();
  } else if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    if (refuse->reason != RefuseReason::kRetry) return End();
    next_attempt_ = now() + backoff_.Next();
  } else if (std::holds_alternative<LeaveNow>(message.body)) {
    leave_when_idle_ = true;
  } else if (std::holds_alternative<JobEnd>(message.body)) {
    job_over_ = true;
    End();
  }
}

void WorkerProcess::OnWelcome(const Welcome& welcome) {
  envelope_.job_id = welcome.job_id;
  envelope_.sender = welcome.incarnation;
  renewal_.Begin(welcome, now());
  welcomed_ = true;
  if (welcome_ && welcome_->incarnation != welcome.incarnation) return End();  // taken for a new process
  if (ready_) ToChief(Ready{});
  if (welcome_ && links_layout_ == envelope_.layout && welcome.servers.size() == links_.size()) {
    return FollowServers(welcome);
  }
  if (welcome_) {
    // No ticket is bound while a layout changes.
    Supersede();
    bound_.reset();
    ahead_.reset();
  }
  welcome_ = welcome;
  links_layout_ = envelope_.layout;
  auto layout = ParameterLayout::Create(welcome.tensors, welcome.bucket_bytes,
                                        static_cast<std::uint32_t>(welcome.servers.size()));
  EK_CHECK(layout.ok());
  layout_ = std::make_shared<const ParameterLayout>(*std::move(layout));
  std::vector<Link> former = std::exchange(links_, {});
  std::move(coming_.begin(), coming_.end(), std::back_inserter(former));
  coming_.clear();
  for (const ServerAddress& server : welcome.servers) links_.push_back(TakeOrMakeLink(former, server));
  CloseAll(former);
  layout_to_come_.reset();
}

// Whoever serves on keeps its stream.
WorkerProcess::Link WorkerProcess::TakeOrMakeLink(std::vector<Link>& former, const ServerAddress& server) {
  Link link;
  link.server = server;
  link.next_attempt = link.down_since = now();
  link.backoff.emplace(Milliseconds(20), std::chrono::seconds(1), MixKey(nonce_, HashName(server.address)));
  const auto kept =
      std::find_if(former.begin(), former.end(), [&](const Link& other) { return other.server == server && other.up; });
  if (kept != former.end()) {
    link.stream = kept->stream;
    link.up = true;
    former.erase(kept);
  }
  return link;
}

void WorkerProcess::OnConnectAhead(const ConnectAhead& order) {
  if (links_.empty() || (leaving_ && !order.servers.empty())) return;
  std::vector<Link> former = std::exchange(coming_, {});
  for (const ServerAddress& server : order.servers) {
    if (std::any_of(links_.begin(), links_.end(), [&](const Link& link) { return link.server == server; })) continue;
    coming_.push_back(TakeOrMakeLink(former, server));
  }
  CloseAll(former);
  layout_to_come_.reset();
  if (!order.servers.empty()) layout_to_come_ = order.layout;
}

// A server that was lost has a replacement.
void WorkerProcess::FollowServers(const Welcome& welcome) {
  OnConnectAhead({});  // a Welcome takes it back
  for (std::size_t i = 0; i < std::min(links_.size(), welcome.servers.size()); ++i) {
    Link& link = links_[i];
    if (link.server.incarnation == welcome.servers[i].incarnation) continue;
    link.server = welcome.servers[i];
    if (link.stream != SessionId{}) environment_.network.Close(*this, link.stream);
    link.stream = SessionId{};
    link.up = false;
    link.next_attempt = link.down_since = now();
  }
}

// A bound ticket stands for the outcome of the one before, where that was lost.
void WorkerProcess::Supersede() {
  if (current_ && !Cancelled()) outcome_ = Outcome{current_->update, false, {}};
}

// --- the servers ----------------------------------------------------------------------------------------------------

void WorkerProcess::ToServer(Link& link, Body body, Payload payload) {
  if (!link.up) return;
  Envelope envelope = envelope_;
  envelope.layout = links_layout_;  // the chief may have spoken of another one already
  environment_.network.Send(*this, link.stream, {std::move(envelope), std::move(body)}, payload);
}

void WorkerProcess::OnServer(Link& link, const Message& message, bool ahead) {
  if (!link.up) {
    if (std::holds_alternative<HelloAck>(message.body)) {
      link.up = true;
      link.backoff->Reset();
      if (!link.pulled) link.pull_at = now();
      link.restage_at = now();
    } else if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
      if (refuse->reason != RefuseReason::kRetry && !ahead) return End();
      environment_.network.Close(*this, link.stream);
      link.stream = SessionId{};
      link.next_attempt = now() + link.backoff->Next();
    }
    return;
  }
  if (ahead) return;
  if (const auto* data = std::get_if<PullData>(&message.body)) {
    if (data->request != request_ || link.pulled) return;
    link.pulled_version = data->version;
    if (data->bucket < 0) link.pulled = true;
  } else if (const auto* ack = std::get_if<StageAck>(&message.body)) {
    const bool stages = doing_ == Doing::kComputing || doing_ == Doing::kStaged;
    if (!staging_ || ack->update != staging_->update || ack->complete || !stages || Cancelled()) return;
    for (std::int32_t bucket : ack->missing) StageBucket(link, bucket, /*asked=*/true);
  } else if (const auto* refuse = std::get_if<Refuse>(&message.body)) {
    OnLinkRefused(link, *refuse);
  }
}

void WorkerProcess::OnLinkRefused(Link& link, const Refuse& refuse) {
  if (refuse.reason == RefuseReason::kRetry) {
    if (!link.pulled) link.pull_at = now() + kRetryPause;
    if (staging_ && refuse.update == staging_->update) link.restage_at = now() + kRetryPause;
  } else if (refuse.reason == RefuseReason::kStaleIncarnation || refuse.reason == RefuseReason::kForeignJob) {
    End();
  } else if (current_ && refuse.update == current_->update) {
    outcome_ = Outcome{current_->update, false, {}};
  }
}

// --- a step ---------------------------------------------------------------------------------------------------------

void WorkerProcess::OnTimer() {
  if (!ended_) Advance();
}

// Does whatever can be done, then says when to look again.
void WorkerProcess::Advance() {
  if (ended_) return;
  const MembershipConfig& membership = environment_.experiment.membership;
  if (leave_deadline_ <= now() || (lost_since_ != kNever && lost_since_ + membership.chief_timeout <= now())) {
    return End();
  }
  if (next_attempt_ <= now()) Connect();
  if (renewal_.next() <= now()) {
    if (renewal_.Due(now())) {
      ToChief(Renew{.state = "working"});
    } else if (leaving_) {
      return End();
    } else {
      // Its stream is open, but nobody answers there.
      environment_.network.Close(*this, chief_);
      LoseChief(renewal_.heard());
    }
  }
  for (std::vector<Link>* links : {&links_, &coming_}) {
    for (Link& link : *links) {
      if (leaving_ || link.stream != SessionId{} || link.next_attempt > now()) continue;
      if (links == &links_ && link.down_since + membership.ps_timeout <= now()) return End();
      link.stream = environment_.network.Connect(*this, link.server.address);
      environment_.network.Send(*this, link.stream, {envelope_, Hello{machine()}});
    }
  }
  if (layout_to_come_ && std::all_of(coming_.begin(), coming_.end(), [](const Link& l) { return l.up; })) {
    ToChief(ConnectedAhead{*std::exchange(layout_to_come_, std::nullopt)});
  }
  if (!ready_ && !links_.empty() && std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.up; })) {
    ready_ = true;
    ToChief(Ready{});
  }
  if (!leaving_ && ready_) {
    if (doing_ == Doing::kStaged || doing_ == Doing::kPulling) {
      if (Cancelled()) doing_ = Doing::kIdle;
    }
    if (doing_ == Doing::kIdle) {
      current_.reset();
      if (bound_) StartStep();
      if (!current_ && leave_when_idle_) return Leave();
    }
    if (doing_ == Doing::kPulling) Pull();
    for (Link& link : links_) {
      if (doing_ != Doing::kStaged || link.restage_at > now()) continue;
      link.restage_at = kNever;
      StageAll(link);
    }
  }
  TimePoint wake = std::min({next_attempt_, renewal_.next(), leave_deadline_});
  if (lost_since_ != kNever) wake = std::min(wake, lost_since_ + membership.chief_timeout);
  for (const Link& link : links_) {
    if (!leaving_ && link.stream == SessionId{}) wake = std::min(wake, link.next_attempt);
    if (link.pull_at > now()) wake = std::min(wake, link.pull_at);
    if (link.restage_at > now()) wake = std::min(wake, link.restage_at);
  }
  for (const Link& link : coming_) {
    if (!leaving_ && link.stream == SessionId{}) wake = std::min(wake, link.next_attempt);
  }
  environment_.scheduler.Wake(*this, std::max(wake, now() + std::chrono::microseconds(1)));
}

void WorkerProcess::StartStep() {
  current_ = std::exchange(bound_, std::nullopt);
  outcome_.reset();
  doing_ = Doing::kPulling;
  ++request_;
  for (Link& link : links_) {
    link.pulled = false;
    link.pull_at = now();
  }
}

void WorkerProcess::Pull() {
  for (Link& link : links_) {
    if (link.pull_at > now() || !link.up) continue;
    link.pull_at = kNever;
    ToServer(link, evenkeel::Pull{request_, current_->version, current_->deadline_ms});
  }
  if (std::all_of(links_.begin(), links_.end(), [](const Link& link) { return link.pulled; })) Compute();
}

void WorkerProcess::StopComputing() {
  if (doing_ != Doing::kComputing) return;
  doing_ = Doing::kIdle;
  const Duration done = std::min(now() - computing_since_, computing_time_);
  environment_.tally.Computed(static_cast<double>(computing_samples_) * ToSeconds(done) / ToSeconds(computing_time_),
                              done);
}

// Buckets are staged as they get ready; a step that was cancelled meanwhile is computed to its end for nothing.
void WorkerProcess::Compute() {
  doing_ = Doing::kComputing;
  staging_ = current_;
  for (Link& link : links_) link.restage_at = kNever;
  const std::int64_t samples = TotalSize(current_->positions);
  const Duration time = Vary(rng_, std::chrono::microseconds(environment_.scenario.step_us)) + samples * per_sample_;
  computing_since_ = now();
  computing_time_ = std::max<Duration>(time, std::chrono::microseconds(1));
  computing_samples_ = samples;
  const auto buckets = static_cast<std::int32_t>(layout_->buckets().size());
  for (std::int32_t bucket = 0; bucket < buckets; ++bucket) {
    environment_.scheduler.At(now() + time * (bucket + 1) / (buckets + 1), this,
                              [this, bucket, update = current_->update] {
                                if (ended_ || leaving_ || Cancelled() || staging_->update != update) return;
                                for (Link& link : links_) StageBucket(link, bucket);
                              });
  }
  environment_.scheduler.At(now() + time, this, [this, time, samples] {
    if (ended_ || leaving_) return;
    environment_.tally.Computed(static_cast<double>(samples), time);
    if (Cancelled()) {
      doing_ = Doing::kIdle;
    } else {
      doing_ = Doing::kStaged;
      for (Link& link : links_) StageClosing(link);
      StepReport report;
      report.update = staging_->update;
      report.samples = samples;
      report.compute_seconds = ToSeconds(time);
      ToChief(report);
    }
    Advance();
  });
}

void WorkerProcess::StageBucket(Link& link, std::int32_t bucket, bool asked) {
  const std::int64_t floats = layout_->StripeOf(bucket, IndexOf(link)).size();
  if (floats == 0) return;
  Stage stage;
  stage.update = staging_->update;
  stage.bucket = bucket;
  stage.offered = staging_->offer && !asked;
  if (stage.offered) return ToServer(link, std::move(stage));
  ToServer(link, std::move(stage),
           Payload{static_cast<std::size_t>(floats) * sizeof(float), GradientValue(staging_->update, bucket)});
}

void WorkerProcess::StageClosing(Link& link) {
  Stage stage;
  stage.update = staging_->update;
  stage.bucket = -1;
  stage.closing = true;
  stage.samples = TotalSize(staging_->positions);
  stage.loss_sum = 0.5 * static_cast<double>(stage.samples);
  stage.computed_on = link.pulled_version;
  ToServer(link, std::move(stage));
}

void WorkerProcess::StageAll(Link& link) {
  for (std::int32_t bucket = 0; bucket < static_cast<std::int32_t>(layout_->buckets().size()); ++bucket) {
    StageBucket(link, bucket);
  }
  StageClosing(link);
}

}  // namespace evenkeel::sim
