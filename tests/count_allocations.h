// Counts what operator new is asked for. It replaces operator new in all its forms, so that a sanitizer's own is never
// paired with this delete: to be included by one file of a program of its own.
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
void* CountedOrNull(std::size_t bytes) {
  Count(bytes);
  return std::malloc(bytes > 0 ? bytes : 1);
}
void* CountedOrNull(std::size_t bytes, std::align_val_t alignment) {
  Count(bytes);
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}
// Out of line: where it is seen beside a new that is replaced too, the compiler takes the pair for a mismatch.
[[gnu::noinline]] void Free(void* memory) { std::free(memory); }
void* Thrown(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return Thrown(CountedOrNull(bytes)); }
void* operator new[](std::size_t bytes) { return Thrown(CountedOrNull(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return Thrown(CountedOrNull(bytes, alignment)); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return Thrown(CountedOrNull(bytes, alignment)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return CountedOrNull(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return CountedOrNull(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return CountedOrNull(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return CountedOrNull(bytes, alignment);
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { Free(memory); }
