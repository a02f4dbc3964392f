#include "transport/shm/memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::shm {
namespace {

absl::Status Failed(const char* what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("[shm] ", what, ": ", std::strerror(error)));
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) munmap(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<Mapping> Mapping::Of(int fd, std::size_t size, bool writable) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return Failed("fstat", errno);
  if (size == 0 || static_cast<std::uint64_t>(info.st_size) < size) {
    return absl::InvalidArgumentError(absl::StrCat("[shm] a block of ", info.st_size, " bytes came for ", size));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("[shm] a block came that its owner can shrink");
  }
  void* data = mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return Failed("mmap", errno);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = size;
  return mapping;
}

absl::StatusOr<Descriptor> CreateWritable(std::size_t size) {
  Descriptor fd(memfd_create("evenkeel-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return absl::UnimplementedError(absl::StrCat("[shm] memfd_create: ", std::strerror(errno)));
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return Failed("ftruncate", errno);
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(size)) != 0) return Failed("fallocate", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return Failed("sealing", errno);
  return fd;
}

absl::Status SendRecord(int socket, std::span<const std::byte> record, int fd) {
  iovec part{const_cast<std::byte*>(record.data()), record.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return absl::OkStatus();
    if (errno != EINTR) return absl::UnavailableError(absl::StrCat("[shm] sendmsg: ", std::strerror(errno)));
  }
}

absl::StatusOr<Record> ReceiveRecord(int socket, std::span<std::byte> record) {
  iovec part{record.data(), record.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size = 0;
  do {
    size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return absl::UnavailableError(absl::StrCat("[shm] recvmsg: ", std::strerror(errno)));
  if (size == 0) return absl::UnavailableError("[shm] the peer is gone");
  Record result;
  bool several = false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      several |= result.fd.get() >= 0;
      result.fd = Descriptor(fd);
    }
  }
  if (several || static_cast<std::size_t>(size) != record.size() ||
      (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("[shm] a record of ", size, " bytes, expected ", record.size()));
  }
  return result;
}

absl::Status WaitReadable(int socket, TimePoint deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now()).count();
    pollfd wanted{.fd = socket, .events = POLLIN, .revents = 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(absl::StrCat("[shm] poll: ", std::strerror(errno)));
    if (left <= 0) return absl::UnavailableError("[shm] no answer in time");
  }
}

absl::Status CheckSameUser(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return Failed("SO_PEERCRED", errno);
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("[shm] the peer is of user ", peer.uid, ", this is ", geteuid()));
  }
  return absl::OkStatus();
}

std::int64_t PeerProcess(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

}  // namespace evenkeel::shm
