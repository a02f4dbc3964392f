// Counts what operator new is asked for. It replaces operator new: to be included by one file of a program of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace evenkeel {
constexpr std::size_t kLargeBytes = 1024;
inline std::atomic<std::int64_t> allocations{0}, large_allocations{0};  // large: from kLargeBytes on
}  // namespace evenkeel

namespace {
void Count(std::size_t bytes) {
  evenkeel::allocations.fetch_add(1, std::memory_order_relaxed);
  if (bytes >= evenkeel::kLargeBytes) evenkeel::large_allocations.fetch_add(1, std::memory_order_relaxed);
}
void* Counted(std::size_t bytes) {
  Count(bytes);
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void* CountedAligned(std::size_t bytes, std::align_val_t alignment) {
  Count(bytes);
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes); }
void* operator new[](std::size_t bytes) { return Counted(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return CountedAligned(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return CountedAligned(bytes, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
