#include "ps/version_pool.h"

#include <algorithm>
#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel::ps {

absl::StatusOr<std::shared_ptr<VersionPool>> VersionPool::Create(std::int64_t floats, MemoryKind memory) {
  std::array<Arena, 3> arenas;
  for (Arena& arena : arenas) {
    EK_ASSIGN_OR_RETURN(arena, Arena::Allocate(static_cast<std::size_t>(floats) * sizeof(float), memory));
  }
  return std::shared_ptr<VersionPool>(new VersionPool(std::move(arenas)));
}

int VersionPool::FreeBuffer() const {
  for (int i = 0; i < 3; ++i) {
    const Buffer& buffer = buffers_[static_cast<size_t>(i)];
    if (i != current_ && buffer.pins == 0 && buffer.copies == 0) return i;
  }
  return -1;
}

std::span<const float> VersionPool::current() const {
  MutexLock lock(mutex_);
  return arenas_[static_cast<size_t>(current_)].floats();
}

PinnedVersion VersionPool::Newest() {
  PinnedVersion pinned;
  std::size_t index = 0;
  {
    MutexLock lock(mutex_);
    while (in_place_) changed_.Wait(mutex_);
    index = static_cast<size_t>(current_);
    pinned.version = buffers_[index].version;
    pinned.floats = arenas_[index].floats();
    if (FreeBuffer() >= 0) return Pin(current_, pinned.version);
    ++buffers_[index].copies;
  }
  const std::size_t floats = pinned.floats.size();
  auto copy = std::make_shared_for_overwrite<float[]>(std::max<std::size_t>(floats, 1));
  std::copy(pinned.floats.begin(), pinned.floats.end(), copy.get());
  pinned.floats = {copy.get(), floats};
  pinned.owner = std::move(copy);
  MutexLock lock(mutex_);
  --buffers_[index].copies;
  changed_.NotifyAll();
  return pinned;
}

PinnedVersion VersionPool::Pin(int index, Version version) {
  ++buffers_[static_cast<size_t>(index)].pins;
  const std::span<const float> floats = arenas_[static_cast<size_t>(index)].floats();
  return {version, floats, std::shared_ptr<const void>(floats.data(), [self = shared_from_this(), index](const void*) {
            self->Unpin(index);
          })};
}

std::optional<PinnedVersion> VersionPool::PinTarget(const Target& target, Version version) {
  MutexLock lock(mutex_);
  if (in_place_) return std::nullopt;
  for (int i = 0; i < 3; ++i) {
    const Buffer& other = buffers_[static_cast<size_t>(i)];
    if (i != target.index && other.pins == 0 && other.copies == 0) return Pin(target.index, version);
  }
  return std::nullopt;
}

void VersionPool::Unpin(int index) {
  MutexLock lock(mutex_);
  --buffers_[static_cast<size_t>(index)].pins;
  changed_.NotifyAll();
}

VersionPool::Target VersionPool::BeginWrite() {
  MutexLock lock(mutex_);
  for (;;) {
    const Buffer& current = buffers_[static_cast<size_t>(current_)];
    int to = FreeBuffer();
    if (to < 0 && current.pins == 0 && current.copies == 0) {
      to = current_;
      in_place_ = true;
    }
    if (to >= 0) {
      return Target{to, arenas_[static_cast<size_t>(current_)].floats(), arenas_[static_cast<size_t>(to)].floats()};
    }
    changed_.Wait(mutex_);
  }
}

void VersionPool::Publish(const Target& target, Version version) {
  MutexLock lock(mutex_);
  current_ = target.index;
  buffers_[static_cast<size_t>(current_)].version = version;
  in_place_ = false;
  changed_.NotifyAll();
}

}  // namespace evenkeel::ps
