#include "evaluator/batch_ahead.h"

#include <algorithm>

namespace evenkeel {

BatchAhead::BatchAhead(const Dataset& dataset, std::int64_t batch_size)
    : dataset_(dataset), batch_size_(batch_size), next_sample_(dataset.size()), thread_([this] { Run(); }) {}

BatchAhead::~BatchAhead() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void BatchAhead::Rewind() {
  MutexLock lock(mutex_);
  next_sample_ = dataset_.size();  // no further batch begins
  while (filling_) changed_.Wait(mutex_);
  next_sample_ = 0;
  filled_ = taken_ = 0;
  status_ = absl::OkStatus();
  changed_.NotifyAll();
}

absl::StatusOr<const Batch*> BatchAhead::Next() {
  MutexLock lock(mutex_);
  while (filled_ == taken_ && status_.ok() && (filling_ || next_sample_ < dataset_.size())) changed_.Wait(mutex_);
  if (filled_ == taken_) {
    if (!status_.ok()) return status_;
    return nullptr;
  }
  changed_.NotifyAll();  // the other batch is free from here on
  return &batches_[taken_++ % 2];
}

void BatchAhead::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    // filled_ - taken_ == 1: one waits, and the caller may still read the other.
    while (!stopping_ && (next_sample_ >= dataset_.size() || filled_ > taken_)) changed_.Wait(mutex_);
    if (stopping_) return;
    Batch& batch = batches_[filled_ % 2];
    const std::int64_t begin = next_sample_;
    const std::int64_t end = std::min(begin + batch_size_, dataset_.size());
    filling_ = true;
    mutex_.Unlock();
    absl::Status status = AssembleRange(dataset_, begin, end, batch);
    mutex_.Lock();
    filling_ = false;
    if (!status.ok()) {
      status_ = std::move(status);
      next_sample_ = dataset_.size();
    } else if (next_sample_ == begin) {
      next_sample_ = end;
      ++filled_;
    }
    changed_.NotifyAll();
  }
}

}  // namespace evenkeel
