#include "evenkeel/core/shared_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/mutex.h"

namespace evenkeel {
namespace {

// Absent from older headers; kernels before 5.1 refuse it.
#ifndef F_SEAL_FUTURE_WRITE
constexpr int F_SEAL_FUTURE_WRITE = 0x0010;
#endif

// Where this process's blocks lie, by address.
struct Registry {
  Mutex mutex;
  std::map<const std::byte*, std::weak_ptr<const SharedBlock>> blocks ABSL_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;  // outlives every block
  return *registry;
}

absl::Status Failed(const char* what, std::size_t bytes, int error) {
  const std::string text = absl::StrCat("[shared memory] ", what, " for ", bytes, " bytes: ", std::strerror(error));
  return error == ENOSYS || error == EINVAL || error == EPERM || error == EACCES ? absl::UnimplementedError(text)
                                                                                 : absl::ResourceExhaustedError(text);
}

std::uint64_t NextId() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

SharedBlock::SharedBlock(std::byte* data, std::size_t size, int fd)
    : data_(data), size_(size), fd_(fd), id_(NextId()) {}

absl::StatusOr<std::shared_ptr<SharedBlock>> SharedBlock::Create(std::size_t bytes) {
  const int fd = memfd_create("evenkeel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd_create", bytes, errno);
  auto fail = [&](const char* what) {
    const int error = errno;
    close(fd);
    return Failed(what, bytes, error);
  };
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return fail("ftruncate");
  // Memory that is not there is an error here, instead of a signal at its first use.
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) return fail("fallocate");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return fail("mmap");
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    const int error = errno;
    munmap(data, bytes);
    errno = error;
    return fail("sealing");
  }
  std::shared_ptr<SharedBlock> block(new SharedBlock(static_cast<std::byte*>(data), bytes, fd));
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.blocks[block->data()] = block;
  return block;
}

std::shared_ptr<const SharedBlock> SharedBlock::Find(std::span<const std::byte> bytes) {
  std::shared_ptr<const SharedBlock> block;  // let go outside the lock, which its destructor takes
  {
    Registry& registry = TheRegistry();
    MutexLock lock(registry.mutex);
    auto after = registry.blocks.upper_bound(bytes.data());
    if (after != registry.blocks.begin()) block = std::prev(after)->second.lock();
  }
  if (block == nullptr || bytes.data() + bytes.size() > block->data() + block->size()) return nullptr;
  return block;
}

SharedBlock::~SharedBlock() {
  {
    Registry& registry = TheRegistry();
    MutexLock lock(registry.mutex);
    registry.blocks.erase(data_);
  }
  munmap(data_, size_);
  close(fd_);
}

}  // namespace evenkeel
