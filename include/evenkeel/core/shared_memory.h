// A block of zeroed memory that other processes of this machine may map to read: a memfd, touched at once, sealed
// against shrinking and growing and against further writable mappings.
//
// Threading: thread-safe.
// Ownership: unmapped with its last holder; another process's mapping lives on without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

namespace evenkeel {

class SharedBlock {
 public:
  // Errors: kResourceExhausted names the bytes; kUnimplemented: this kernel, or its rules for this process, has no
  // memfd with these seals. Requires bytes > 0.
  static absl::StatusOr<std::shared_ptr<SharedBlock>> Create(std::size_t bytes);
  // The block that holds all of `bytes`; null: none does.
  static std::shared_ptr<const SharedBlock> Find(std::span<const std::byte> bytes);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_; }
  std::uint64_t id() const { return id_; }  // of this process's blocks; never used twice

 private:
  SharedBlock(std::byte* data, std::size_t size, int fd);

  std::byte* const data_;
  const std::size_t size_;
  const int fd_;
  const std::uint64_t id_;
};

}  // namespace evenkeel
