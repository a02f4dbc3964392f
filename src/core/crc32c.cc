#include "core/crc32c.h"

#include <array>
#include <cstring>

#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace evenkeel {
namespace internal {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;  // Castagnoli, bits reversed
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b]: the CRC of byte b followed by k zero bytes, so that eight bytes take eight independent look-ups.
constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

std::uint32_t LittleEndian32(const std::byte* p) {
  return std::to_integer<std::uint32_t>(p[0]) | std::to_integer<std::uint32_t>(p[1]) << 8 |
         std::to_integer<std::uint32_t>(p[2]) << 16 | std::to_integer<std::uint32_t>(p[3]) << 24;
}

}  // namespace

std::uint32_t Crc32cTable(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, p += 8) {
    std::uint32_t low = crc ^ LittleEndian32(p);
    std::uint32_t high = LittleEndian32(p + 4);
    crc = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
          kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
  }
  for (; left > 0; --left, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*p)) & 0xff];
  return ~crc;
}

#if defined(__x86_64__)

bool HasCrc32cInstruction() { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target("sse4.2"))) std::uint32_t Crc32cInstruction(std::span<const std::byte> bytes, std::uint32_t crc) {
  std::uint64_t state = static_cast<std::uint32_t>(~crc);
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof word);
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<std::uint32_t>(state);
  for (; left > 0; --left, ++p) narrow = _mm_crc32_u8(narrow, std::to_integer<std::uint8_t>(*p));
  return ~narrow;
}

#else

bool HasCrc32cInstruction() { return false; }

std::uint32_t Crc32cInstruction(std::span<const std::byte>, std::uint32_t) {
  EK_CHECK_MSG(false, "this processor has no CRC-32C instruction");
}

#endif

}  // namespace internal

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  static const bool has_instruction = internal::HasCrc32cInstruction();
  return has_instruction ? internal::Crc32cInstruction(bytes, crc) : internal::Crc32cTable(bytes, crc);
}

std::uint32_t MaskedCrc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace evenkeel
