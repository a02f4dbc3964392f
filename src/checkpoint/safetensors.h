// The safetensors container, float32 only: an 8-byte little-endian header length, a JSON header padded with spaces to a
// multiple of 8, then the tensors' bytes back to back in the header's order.
//
// Threading: a writer is for one thread. Memory: neither side holds more than the header and one chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/shape.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {

// A header beyond this is refused, written or read.
constexpr std::uint64_t kMaxSafetensorsHeaderBytes = std::uint64_t{32} << 20;
// Bytes that are summed and read at once.
constexpr std::size_t kCheckpointChunkBytes = std::size_t{1} << 20;

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsEntry {
  std::string name;
  Shape shape;
};

// Writes to a temporary name beside `path`; Finish() syncs and renames, so that the file is there whole or not at all.
class SafetensorsWriter {
 public:
  // Errors: kInvalidArgument for a name that is reserved, repeated or not UTF-8, and for a header that is too long.
  static absl::StatusOr<SafetensorsWriter> Create(Storage& storage, std::string path,
                                                  std::span<const SafetensorsEntry> entries,
                                                  const SafetensorsMetadata& metadata);
  // The next values, in the order of the entries; calls need not match the entries' bounds.
  absl::Status Append(std::span<const float> values);

  struct Sum {
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  // Of the whole file. Errors: kInvalidArgument when more or fewer values came than the header says.
  absl::StatusOr<Sum> Finish();

  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  absl::Status AppendBytes(std::span<const std::byte> bytes);
  std::unique_ptr<State> state_;
};

struct StoredTensor {
  std::string name;
  Shape shape;
  std::int64_t elements = 0;
  std::uint64_t file_offset = 0;  // of its first byte
};

// The tensors of a file in the order of their bytes, which cover the data exactly.
// Errors: kDataLoss names the file and what is wrong; kNotFound.
absl::StatusOr<std::vector<StoredTensor>> ReadSafetensorsHeader(const Storage& storage, const std::string& path);

// CRC-32C of the file's first `bytes` bytes, read in chunks.
absl::StatusOr<std::uint32_t> FileCrc32c(const Storage& storage, const std::string& path, std::uint64_t bytes);

}  // namespace evenkeel
