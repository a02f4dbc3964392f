#include "evenkeel/core/arena.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace evenkeel {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t RoundUp(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

absl::Status NoMemory(std::size_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("[arena] cannot allocate ", bytes, " bytes: ", std::strerror(error)));
}

// A mapping of `bytes` that starts at a multiple of `alignment`: maps more, then gives back both ends.
void* MapAligned(std::size_t bytes, std::size_t alignment) {
  const std::size_t slack = alignment == kHugePage ? kHugePage : 0;  // a page's alignment comes by itself
  void* mapping = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED || slack == 0) return mapping;
  auto address = reinterpret_cast<std::uintptr_t>(mapping);
  std::size_t head = RoundUp(address, alignment) - address;
  if (head > 0) munmap(mapping, head);
  char* start = static_cast<char*>(mapping) + head;
  if (slack > head) munmap(start + bytes, slack - head);
  return start;
}

}  // namespace

absl::StatusOr<Arena> Arena::AllocatePrivate(std::size_t bytes) {
  Arena arena;
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) return NoMemory(bytes, ENOMEM);
  const bool huge = bytes >= kHugePage;
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t mapped = RoundUp(bytes, huge ? kHugePage : page);
  void* start = MapAligned(mapped, huge ? kHugePage : page);
  if (start == MAP_FAILED) return NoMemory(bytes, errno);
  // A refusal only costs speed.
  if (huge) (void)madvise(start, mapped, MADV_HUGEPAGE);
  for (std::size_t offset = 0; offset < mapped; offset += page) static_cast<volatile char*>(start)[offset] = 0;
  arena.data_ = static_cast<std::byte*>(start);
  arena.size_ = bytes;
  arena.mapped_ = mapped;
  return arena;
}

absl::StatusOr<Arena> Arena::Allocate(std::size_t bytes, MemoryKind kind) {
  if (bytes == 0) return Arena();
  if (kind == MemoryKind::kPrivate) return AllocatePrivate(bytes);
  auto block = SharedBlock::Create(bytes);
  if (absl::IsUnimplemented(block.status())) return AllocatePrivate(bytes);
  if (!block.ok()) return block.status();
  Arena arena;
  arena.shared_ = *std::move(block);
  arena.data_ = arena.shared_->data();
  arena.size_ = bytes;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      shared_(std::move(other.shared_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    Free();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapped_ = std::exchange(other.mapped_, 0);
    shared_ = std::move(other.shared_);
  }
  return *this;
}

Arena::~Arena() { Free(); }

void Arena::Free() {
  if (data_ != nullptr && shared_ == nullptr) munmap(data_, mapped_);
}

void TuneAllocator() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, INT_MAX);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_ARENA_MAX, 1);
#endif
}

void ReturnFreeMemory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace evenkeel
