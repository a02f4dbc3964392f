// The apply thread and the side thread.
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/timeline.h"
#include "runtime/ps_process.h"

namespace evenkeel {

void PsProcess::ApplyLoop() {
  for (;;) {
    std::optional<Work> work;
    {
      MutexLock lock(mutex_);
      while ((work_.empty() || working_) && !stopping_) work_ready_.Wait(mutex_);
      if (stopping_) return;
      work = std::move(work_.front());
      work_.pop_front();
      working_ = true;
    }
    std::visit([this](const auto& w) { Run(w); }, *work);
    MutexLock lock(mutex_);
    working_ = false;
  }
}

std::shared_ptr<ps::Shard> PsProcess::shard() {
  MutexLock lock(mutex_);
  return shard_;
}

// The former memory goes first, so that the two never add up.
absl::StatusOr<std::shared_ptr<ps::Shard>> PsProcess::NewShard(const ps::Place& place) {
  std::shared_ptr<ps::Shard> former;
  {
    MutexLock lock(mutex_);
    former = std::move(shard_);
    shard_.reset();
  }
  former.reset();
  return ps::Shard::Create(place, pool_, MemoryKind::kShared);
}

void PsProcess::Run(const ps::Initialise& work) {
  auto made = NewShard(work.place);
  if (made.ok()) (*made)->Initialise(work.seed, work.version);
  Turn([&] {
    if (made.ok()) shard_ = *made;
    return server_.OnConfigured(work.version, made.status(), clock_.Now());
  });
}

void PsProcess::Run(const ps::Restore& work) {
  auto made = NewShard(work.place);
  absl::Status status = made.status();
  if (status.ok()) {
    const std::string& model_dir = options_.model_dir.empty() ? work.model_dir : options_.model_dir;
    auto reader = CheckpointReader::Open(storage_, model_dir, work.checkpoint);
    status = reader.ok() ? (*made)->Restore(*reader, work.version) : reader.status();
  }
  Turn([&] {
    if (status.ok()) shard_ = *made;
    return server_.OnConfigured(work.version, status, clock_.Now());
  });
}

void PsProcess::Run(const ps::AllocateSlot& work) {
  std::shared_ptr<ps::Shard> memory = shard();
  absl::Status status = memory ? memory->AllocateSlot(work.slot) : absl::OkStatus();
  Turn([&] { return server_.OnSlotReady(work.slot, status, clock_.Now()); });
}

void PsProcess::Run(const ps::FoldBucket& work) {
  std::shared_ptr<ps::Shard> memory = shard();
  if (!memory) return;
  const TimePoint begin = clock_.Now();
  memory->FoldBucket(work.step.bucket, work.step.first, work.positions, work.slots);
  if (TimelineOn()) TimelineSpan("apply", absl::StrCat("fold bucket ", work.step.bucket), begin, clock_.Now());
  Turn([&] { return server_.OnFolded(work.configuration, work.step, clock_.Now()); });
}

void PsProcess::Run(const ps::ComputeNorms& work) {
  std::shared_ptr<ps::Shard> memory = shard();
  if (!memory) return;
  std::vector<BlockNorm> norms = memory->Norms(work.slots);
  Turn([&] { return server_.OnNorms(work.set, work.attempt, std::move(norms), clock_.Now()); });
}

std::vector<PsProcess::Answering> PsProcess::TakePullsOf(Version version) {
  std::vector<Answering> answering;
  MutexLock lock(mutex_);
  for (ps::ServePull& pull : server_.TakePullsOf(version)) {
    const auto it = sessions_.find(pull.session);
    if (it != sessions_.end()) answering.push_back({pull, {it->second, shard_, server_.MakeEnvelope()}});
  }
  return answering;
}

// Whoever waits for the version gets its buckets as they are made, and its end once it is published: a worker that goes
// on before would stage its next update while this one is still being applied. Where the version before was waited for,
// this one is going to be, though nobody has asked yet.
void PsProcess::Run(const ps::ApplyDecision& work) {
  std::shared_ptr<ps::Shard> memory = shard();
  if (!memory) return;
  const TimePoint begin = clock_.Now();
  const Version version = work.decision.version;
  std::vector<Answering> answering, newcomers = TakePullsOf(version);
  std::vector<int> sent;
  ps::Shard::BucketReady ready;
  if (!newcomers.empty() || versions_awaited_) {
    sent.reserve(memory->place().layout->buckets().size());
    ready = [&](int bucket, const ps::PinnedVersion& pinned) {
      for (Answering& one : TakePullsOf(version)) newcomers.push_back(std::move(one));
      for (Answering& one : newcomers) {
        for (const int former : sent) SendBucket(one, pinned, former);
        answering.push_back(std::move(one));
      }
      newcomers.clear();
      for (const Answering& one : answering) SendBucket(one, pinned, bucket);
      sent.push_back(bucket);
    };
  }
  std::vector<double> squared_sums = memory->Apply(work.decision, work.slots, ready, work.folded);
  if (TimelineOn()) TimelineSpan("apply", absl::StrCat("apply ", ToString(version)), begin, clock_.Now());
  for (Answering& one : TakePullsOf(version)) newcomers.push_back(std::move(one));
  versions_awaited_ = !answering.empty() || !newcomers.empty();
  Turn([&] {
    const TimePoint now = clock_.Now();
    return server_.OnApplied(version, ToSeconds(now - begin), std::move(squared_sums), now);
  });
  const bool replaced = shard() != memory;
  for (const Answering& one : answering) {
    if (replaced) {
      RefusePull(*one.to.stream, one.to.envelope, one.pull.request);
    } else {
      (void)one.to.stream->Send(
          {one.to.envelope, PullData{.request = one.pull.request, .version = version, .bucket = -1}});
    }
  }
  for (const Answering& one : newcomers) Do(one.pull);
}

void PsProcess::Run(const ps::StartSnapshot& work) {
  MutexLock lock(mutex_);
  if (!shard_) return;
  shard_->BeginSnapshot();
  side_work_.push_back(SnapshotJob{shard_, work.snapshot});
  side_ready_.NotifyOne();
}

void PsProcess::SideLoop() {
  for (;;) {
    std::optional<SideWork> work;
    {
      MutexLock lock(mutex_);
      while (side_work_.empty() && !stopping_) side_ready_.Wait(mutex_);
      if (side_work_.empty()) return;
      work = std::move(side_work_.front());
      side_work_.pop_front();
    }
    std::visit([this](const auto& w) { Run(w); }, *work);
  }
}

void PsProcess::Run(const SnapshotJob& job) {
  SnapshotDone done = WriteSnapshot(job);
  Turn([&] { return server_.OnSnapshotWritten(done, clock_.Now()); });
}

SnapshotDone PsProcess::WriteSnapshot(const SnapshotJob& job) {
  const Snapshot& snapshot = job.snapshot;
  SnapshotDone done{.version = snapshot.version, .file = snapshot.file};
  const std::string folder =
      options_.model_dir.empty() ? snapshot.folder : CheckpointFolder(options_.model_dir, snapshot.version);
  // The snapshot is closed by WriteSnapshot; a folder that cannot be made makes the write fail with the cause.
  absl::Status made = storage_.MakeFolder(folder);
  auto part = job.shard->WriteSnapshot(storage_, folder, snapshot.file);
  if (part.ok()) {
    done.bytes = part->bytes;
    done.crc32c = part->crc32c;
  } else {
    done.error = std::string((made.ok() ? part.status() : made).message());
  }
  return done;
}

}  // namespace evenkeel
