// Checksums and digests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace evenkeel {

// CRC-32C (Castagnoli), as in RFC 3720; `crc` continues an earlier one.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);
// TFRecord's masked CRC.
std::uint32_t MaskedCrc32c(std::span<const std::byte> bytes);

// SHA-256, incremental.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(std::span<const std::byte> bytes);
  // 64 lower-case hex digits. Call once.
  std::string HexDigest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};
std::string Sha256Hex(std::string_view bytes);

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace evenkeel
