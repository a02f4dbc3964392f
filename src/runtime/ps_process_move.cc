// Stripes on their way to another layout.
#include <algorithm>
#include <utility>

#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"
#include "runtime/ps_process.h"

namespace evenkeel {
namespace {

constexpr std::string_view kTrack = "move";  // of the timeline

}  // namespace

void PsProcess::Do(ps::PreparePlace action) {
  MutexLock lock(mutex_);
  prepared_ = Preparation{.number = action.number};
  side_work_.push_back(std::move(action));
  side_ready_.NotifyOne();
}

void PsProcess::Do(ps::DropPrepared action) { Forget(action.number); }

void PsProcess::Run(const ps::PreparePlace& work) {
  auto wanted = [this, &work]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !stopping_ && prepared_ && prepared_->number == work.number;
  };
  {
    MutexLock lock(mutex_);
    if (!wanted()) return;
  }
  auto made = ps::Shard::Create(work.place, pool_, MemoryKind::kShared);
  if (!made.ok()) {
    return Turn([&] { return server_.OnPrepared(work.number, made.status(), clock_.Now()); });
  }
  std::shared_ptr<ps::Shard> fresh = *std::move(made);
  fresh->BeginMove();
  StateFetch::Plan plan = ps::Shard::PlanMove(*work.from, work.place);
  std::vector<ps::Shard::MovePiece> own;
  if (work.own) own = std::exchange(plan[work.own->value()], {});
  auto fetch =
      std::make_shared<StateFetch>(fresh, std::move(plan), work, options_.name, transport_, options_.connect_timeout);
  {
    MutexLock lock(mutex_);
    if (!wanted()) return;
    *prepared_ = Preparation{work.number, std::move(fresh), fetch, std::move(own)};
  }
  fetch->Open([self = shared_from_this(), number = work.number](const absl::Status& status) {
    self->Turn([&] { return self->server_.OnPrepared(number, status, self->clock_.Now()); });
  });
}

void PsProcess::Run(const ps::FillPlace& work) {
  Preparation prepared;
  std::shared_ptr<ps::Shard> held;
  {
    MutexLock lock(mutex_);
    if (!prepared_ || prepared_->number != work.number) return;  // dropped
    prepared = *prepared_;
    held = shard_;
  }
  auto filled = [self = shared_from_this(), number = work.number, begin = clock_.Now()](const absl::Status& status) {
    TimelineSpan(kTrack, "fill the place", begin, self->clock_.Now());
    self->Turn([&] { return self->server_.OnFilled(number, status, self->clock_.Now()); });
  };
  EK_CHECK(prepared.own.empty() || held);
  if (absl::Status status = prepared.own.empty() ? absl::OkStatus() : CopyOwn(*held, *prepared.shard, prepared.own);
      !status.ok()) {
    return filled(status);
  }
  prepared.fetch->Fill(work.version, std::move(filled), [self = shared_from_this(), number = work.number] {
    self->Turn([&] { return self->server_.OnPiece(number, self->clock_.Now()); });
  });
}

absl::Status PsProcess::CopyOwn(const ps::Shard& from, ps::Shard& to, const std::vector<ps::Shard::MovePiece>& pieces) {
  for (const ps::Shard::MovePiece& piece : pieces) {
    EK_ASSIGN_OR_RETURN(const std::span<const float> source, from.Range(piece.array, piece.begin, piece.end));
    EK_ASSIGN_OR_RETURN(const std::span<float> target, to.MoveInto(piece.array, piece.begin, piece.end));
    std::copy(source.begin(), source.end(), target.begin());
  }
  return absl::OkStatus();
}

void PsProcess::Forget(std::uint64_t number) {
  std::optional<Preparation> dropped;
  {
    MutexLock lock(mutex_);
    if (!prepared_ || (number != 0 && prepared_->number != number)) return;
    dropped = std::exchange(prepared_, std::nullopt);
  }
  if (dropped->fetch) dropped->fetch->Cancel();
}

void PsProcess::Do(ps::AdoptPrepared action) {
  std::shared_ptr<ps::Shard> fresh;
  {
    MutexLock lock(mutex_);
    EK_CHECK(prepared_ && prepared_->number == action.number);
    fresh = prepared_->shard;
  }
  Forget(action.number);
  Queue(Adoption{std::move(fresh), action.version});
}

void PsProcess::Run(const Adoption& work) {
  const TimelineBlock timeline(kTrack, "adopt the place");
  std::shared_ptr<ps::Shard> former;
  work.shard->FinishMove(work.version);
  Turn([&] {
    former = std::exchange(shard_, work.shard);
    return server_.OnConfigured(work.version, absl::OkStatus(), clock_.Now());
  });
}

// A copy, because the next step may change slots while the transport still sends.
void PsProcess::Run(const ps::ServeFetch& work) {
  const TimelineBlock timeline(kTrack, "serve state");
  const std::optional<Serving> serving = ServingTo(work.session);
  if (!serving || !serving->shard) return;
  const auto& [stream, memory, envelope] = *serving;
  auto floats = std::make_shared<std::vector<float>>();
  for (const PositionRange& range : work.fetch.ranges) {
    const auto source = memory->Range(work.fetch.array, range.begin, range.end);
    if (!source.ok()) {
      (void)stream->Send({envelope, Refuse{RefuseReason::kMalformed, std::string(source.status().message()), {}}});
      return;
    }
    floats->insert(floats->end(), source->begin(), source->end());
  }
  const std::span<const float> all(*floats);
  (void)stream->Send({envelope, FetchData{work.fetch.request, work.fetch.version}},
                     PayloadOut{std::as_bytes(all), std::move(floats)});
}

}  // namespace evenkeel
