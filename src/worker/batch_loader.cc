#include "worker/batch_loader.h"

#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel {

BatchLoader::BatchLoader(const Dataset& dataset, AugmentOptions augment)
    : dataset_(dataset), augment_(augment), thread_([this] { Run(); }) {}

BatchLoader::~BatchLoader() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void BatchLoader::Request(UpdateId update, Epoch epoch, RangeList positions) {
  MutexLock lock(mutex_);
  wanted_ = Wanted{update, epoch, std::move(positions)};
  filled_.reset();
  changed_.NotifyAll();
}

absl::StatusOr<const Batch*> BatchLoader::Take(UpdateId update) {
  MutexLock lock(mutex_);
  EK_CHECK(filled_ == update || (wanted_ && wanted_->update == update) || !filled_);
  while (filled_ != update) changed_.Wait(mutex_);
  filled_.reset();
  if (!status_.ok()) return status_;
  const Batch* taken = &batches_[static_cast<std::size_t>(filling_)];
  filling_ = 1 - filling_;
  return taken;
}

void BatchLoader::Run() {
  for (;;) {
    Wanted work;
    Batch* batch = nullptr;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && !wanted_) changed_.Wait(mutex_);
      if (stopping_) return;
      work = *std::exchange(wanted_, std::nullopt);
      batch = &batches_[static_cast<std::size_t>(filling_)];
    }
    absl::Status status = AssembleBatch(dataset_, augment_, work.epoch, work.positions, *batch);
    MutexLock lock(mutex_);
    if (wanted_) continue;  // replaced meanwhile
    filled_ = work.update;
    status_ = std::move(status);
    changed_.NotifyAll();
  }
}

}  // namespace evenkeel
