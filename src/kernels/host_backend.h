// What backends on host memory share: buffers, copies and an immediate Synchronize.
#pragma once

#include <memory>
#include <span>

#include "evenkeel/kernels/backend.h"

namespace evenkeel::kernels {

class HostBackend : public Backend {
 public:
  bool host_memory() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t bytes) override;
  std::int64_t AvailableBytes() const override;
  std::int64_t scratch_bytes() const override { return 0; }
  absl::Status CopyToDevice(std::span<const std::byte> host, void* device) override;
  absl::Status CopyToHost(const void* device, std::span<std::byte> host) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

}  // namespace evenkeel::kernels
