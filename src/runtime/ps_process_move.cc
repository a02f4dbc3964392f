// Stripes on their way to another layout, on the apply thread.
#include <algorithm>
#include <utility>

#include "evenkeel/core/status.h"
#include "runtime/ps_process.h"

namespace evenkeel {

void PsProcess::Run(const ps::PreparePlace& work) {
  auto made = ps::Shard::Create(work.place, pool_);
  absl::Status status = made.status();
  StateFetch::Plan plan = ps::Shard::PlanMove(*work.from, work.place);
  std::shared_ptr<ps::Shard> fresh, old = shard();
  if (status.ok()) {
    fresh = *std::move(made);
    fresh->BeginMove();
    if (work.own && old) status = CopyOwn(*old, *fresh, std::exchange(plan[work.own->value()], {}));
  }
  if (!status.ok()) {
    return Turn([&] { return server_.OnPrepared(work.number, status, clock_.Now()); });
  }
  auto fetch = std::make_shared<StateFetch>(
      fresh, std::move(plan), work, options_.name, transport_, options_.connect_timeout,
      [self = shared_from_this(), number = work.number](const absl::Status& end) {
        self->Turn([&] { return self->server_.OnPrepared(number, end, self->clock_.Now()); });
      });
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    prepared_ = Prepared{work.number, fresh, fetch};
  }
  fetch->Start();
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
  std::optional<Prepared> dropped;
  {
    MutexLock lock(mutex_);
    if (!prepared_ || (number != 0 && prepared_->number != number)) return;
    dropped = std::exchange(prepared_, std::nullopt);
  }
  dropped->fetch->Cancel();
}

void PsProcess::Run(const ps::DropPrepared& work) { Forget(work.number); }

void PsProcess::Run(const ps::AdoptPrepared& work) {
  std::shared_ptr<ps::Shard> fresh, former;
  {
    MutexLock lock(mutex_);
    EK_CHECK(prepared_ && prepared_->number == work.number);
    fresh = prepared_->shard;
  }
  Forget(work.number);
  fresh->FinishMove(work.version);
  Turn([&] {
    former = std::exchange(shard_, fresh);
    return server_.OnConfigured(work.version, absl::OkStatus(), clock_.Now());
  });
}

// A copy, because the next step may change slots while the transport still sends.
void PsProcess::Run(const ps::ServeFetch& work) {
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
