#include "kernels/host_backend.h"

#include <cstring>
#include <utility>

#include "evenkeel/core/arena.h"
#include "evenkeel/core/available_memory.h"
#include "evenkeel/core/status.h"

namespace evenkeel::kernels {
namespace {

class HostBuffer : public DeviceBuffer {
 public:
  explicit HostBuffer(Arena arena) : arena_(std::move(arena)) {}
  void* data() const override { return arena_.data(); }
  std::size_t bytes() const override { return arena_.size(); }

 private:
  Arena arena_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBuffer>> HostBackend::Allocate(std::size_t bytes) {
  EK_ASSIGN_OR_RETURN(Arena arena, Arena::Allocate(bytes));
  return std::make_unique<HostBuffer>(std::move(arena));
}

std::int64_t HostBackend::AvailableBytes() const { return AvailableMemory(); }

absl::Status HostBackend::CopyToDevice(std::span<const std::byte> host, void* device) {
  if (!host.empty()) std::memcpy(device, host.data(), host.size());
  return absl::OkStatus();
}

absl::Status HostBackend::CopyToHost(const void* device, std::span<std::byte> host) {
  if (!host.empty()) std::memcpy(host.data(), device, host.size());
  return absl::OkStatus();
}

}  // namespace evenkeel::kernels
