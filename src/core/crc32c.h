// The two implementations of CRC-32C, for the choice in Crc32c() and for tests. Both take and return the finished
// (inverted) value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace evenkeel::internal {

std::uint32_t Crc32cTable(std::span<const std::byte> bytes, std::uint32_t crc);
bool HasCrc32cInstruction();
// Requires HasCrc32cInstruction().
std::uint32_t Crc32cInstruction(std::span<const std::byte> bytes, std::uint32_t crc);

}  // namespace evenkeel::internal
