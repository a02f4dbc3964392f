#include "sim/chief_process.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace evenkeel::sim {
namespace {

constexpr Duration kDiskTime = std::chrono::milliseconds(4);

}  // namespace

ChiefProcess::ChiefProcess(Environment& environment, std::uint64_t life)
    : Peer("chief"),
      environment_(environment),
      rng_(environment.NewRng("chief", life)),
      options_(MakeOptions(environment)),
      chief_(std::make_unique<Chief>(options_)) {}

// As runtime's chief prepares itself from its model_dir.
ChiefOptions ChiefProcess::MakeOptions(Environment& environment) {
  JobDisk& disk = environment.disk;
  ChiefOptions options;
  std::tie(options.history, options.resume) = disk.History();
  options.experiment = environment.experiment;
  options.model_dir = "model";
  options.servers = environment.scenario.servers;
  options.stage_bytes = environment.scenario.stage_bytes;
  for (std::uint32_t i = 0; i < environment.scenario.workers; ++i) {
    options.listed_workers.push_back(absl::StrCat("worker:", i));
  }
  options.term = disk.ClaimTerm();
  options.new_job_id = absl::StrFormat("%032x", MixKey(environment.scenario.seed, options.term.value()));
  return options;
}

void ChiefProcess::Start() {
  environment_.invariants.ChiefStarts(options_);
  Take(chief_->Start(environment_.scheduler.now(), 1'700'000'000'000));
}

void ChiefProcess::OnTimer() {
  const TimePoint now = environment_.scheduler.now();
  if (now >= chief_->NextDeadline()) return Take(chief_->Tick(now));
  environment_.scheduler.Wake(*this, chief_->NextDeadline());
}

void ChiefProcess::TickNow() { Take(chief_->Tick(environment_.scheduler.now())); }

void ChiefProcess::OnMessage(SessionId stream, Message message, Payload) {
  std::string& name = streams_[stream];
  if (const auto* join = std::get_if<Join>(&message.body)) name = join->name;
  std::vector<std::pair<SessionId, Message>> messages;
  messages.emplace_back(stream, std::move(message));
  environment_.interposer.BeforeChief(messages);
  for (auto& [session, one] : messages) {
    Take(chief_->OnMessage(session, std::move(one), environment_.scheduler.now()));
  }
}

void ChiefProcess::OnClosed(SessionId stream) {
  streams_.erase(stream);
  Take(chief_->OnSessionClosed(stream, environment_.scheduler.now()));
}

// As somebody who asks on a stream of its own.
OrderReply ChiefProcess::Order(Body order) {
  constexpr SessionId kStream(std::numeric_limits<std::uint64_t>::max());
  ChiefActions actions = chief_->OnMessage(kStream, Message{{}, std::move(order)}, environment_.scheduler.now());
  OrderReply reply;
  for (const ChiefAction& action : actions) {
    const auto* send = std::get_if<SendAction>(&action);
    const auto* answer = send == nullptr ? nullptr : std::get_if<OrderReply>(&send->message.body);
    if (answer != nullptr) reply = *answer;
  }
  Take(std::move(actions));
  return reply;
}

void ChiefProcess::Stop() { Take(chief_->Stop("told to", environment_.scheduler.now())); }

void ChiefProcess::CloseAll() {
  for (const auto& [stream, name] : std::exchange(streams_, {})) environment_.network.Close(*this, stream);
}

void ChiefProcess::Take(ChiefActions actions) {
  environment_.interposer.AfterChief(actions);
  for (ChiefAction& action : actions) {
    if (auto* send = std::get_if<SendAction>(&action)) {
      const auto stream = streams_.find(send->session);
      if (std::holds_alternative<LeaveNow>(send->message.body) && stream != streams_.end()) {
        environment_.invariants.ToldToLeave(stream->second);
      }
      environment_.invariants.ChiefSends(send->message);
      environment_.network.Send(*this, send->session, std::move(send->message));
    } else if (auto* close = std::get_if<CloseAction>(&action)) {
      if (!streams_.contains(close->session)) continue;
      environment_.network.Close(*this, close->session);
      environment_.scheduler.At(environment_.scheduler.now() + Vary(rng_, std::chrono::microseconds(200)), this,
                                [this, session = close->session] { OnClosed(session); });
    } else if (auto* append = std::get_if<AppendLogAction>(&action)) {
      environment_.invariants.LogAppended(append->record);
      environment_.tally.LogAppended(append->record, environment_.scheduler.now());
      environment_.disk.Append(std::move(append->record));
    } else if (std::holds_alternative<CutLogAction>(action)) {
      OnDisk([this, records = environment_.disk.appended()] { environment_.disk.Sync(records); });
    } else if (std::holds_alternative<SyncLogAction>(action)) {
      OnDisk([this] { environment_.disk.Sync(); });
    } else if (auto* write = std::get_if<WriteManifestAction>(&action)) {
      OnDisk([this, manifest = std::move(write->manifest)] { WriteManifest(manifest); });
    } else if (auto* end = std::get_if<EndAction>(&action)) {
      environment_.invariants.JobEnded(*end, environment_.disk.manifests);
      end_ = std::move(*end);
    }
  }
  environment_.scheduler.Wake(*this, chief_->NextDeadline());
}

void ChiefProcess::OnDisk(std::function<void()> work) {
  Scheduler& scheduler = environment_.scheduler;
  disk_free_ = std::max(disk_free_, scheduler.now()) + Vary(rng_, kDiskTime);
  scheduler.At(disk_free_, this, std::move(work));
}

void ChiefProcess::WriteManifest(const Manifest& manifest) {
  absl::Status status;
  if (failing_manifests_ > 0) {
    --failing_manifests_;
    status = absl::ResourceExhaustedError(kDiskError);
  } else {
    std::vector<JobDisk::Part> parts;
    const std::string folder = CheckpointFolder(options_.model_dir, manifest.version);
    for (const PartInfo& part : manifest.parts) {
      const auto it = environment_.disk.parts.find(JobDisk::PathOf(folder, part.file));
      if (it == environment_.disk.parts.end() || it->second.version != manifest.version) {
        environment_.invariants.Break(absl::StrCat("manifest ", CheckpointName(manifest.version), " lists ", part.file,
                                                   ", which holds another version"));
      } else {
        parts.push_back(it->second);
      }
    }
    environment_.invariants.CheckpointWritten(manifest, parts);
    environment_.disk.manifests[manifest.version] = manifest;
    environment_.disk.Thin(manifest.version);
  }
  // A crash may come between the two.
  environment_.scheduler.At(environment_.scheduler.now() + Vary(rng_, kDiskTime), this,
                            [this, version = manifest.version, status] {
                              Take(chief_->OnManifestWritten(version, status, environment_.scheduler.now()));
                            });
}

}  // namespace evenkeel::sim
