// A large block of zeroed memory, allocated once and kept: huge pages where the kernel gives them, touched at once, so
// that no first access to a page happens during training.
//
// Ownership: movable, frees on destruction. Alignment: 2 MiB for blocks of at least 2 MiB, else 64 bytes; shared ones a
// page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "evenkeel/core/shared_memory.h"

namespace evenkeel {

enum class MemoryKind : std::uint8_t {
  kPrivate,
  kShared,  // a SharedBlock, which other processes of this machine may map to read; private where the kernel has none
};

class Arena {
 public:
  Arena() = default;
  // Errors: kResourceExhausted names the bytes asked for. 0 bytes gives an empty arena.
  static absl::StatusOr<Arena> Allocate(std::size_t bytes, MemoryKind kind = MemoryKind::kPrivate);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<float> floats() const { return {reinterpret_cast<float*>(data_), size_ / sizeof(float)}; }

 private:
  static absl::StatusOr<Arena> AllocatePrivate(std::size_t bytes);
  void Free();

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
  std::shared_ptr<SharedBlock> shared_;  // owns data_ where it is not null
};

// Tunes malloc for large, long-lived blocks (no mmap threshold, no trimming). Call once, first thing in main().
void TuneAllocator();
// Gives back to the system what malloc keeps of freed memory: after work that took much more than it leaves.
void ReturnFreeMemory();

}  // namespace evenkeel
