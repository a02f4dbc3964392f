#include "evenkeel/core/digest.h"

#include <vector>

#include <catch2/catch.hpp>

#include "core/crc32c.h"
#include "evenkeel/core/random.h"

namespace evenkeel {
namespace {

TEST_CASE("CRC-32C gives the values of RFC 3720", "[core][digest]") {
  std::vector<std::byte> bytes(32, std::byte{0});
  CHECK(Crc32c(bytes) == 0x8a9136aau);
  bytes.assign(32, std::byte{0xff});
  CHECK(Crc32c(bytes) == 0x62a8ab43u);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(Crc32c(bytes) == 0x46dd794eu);
  CHECK(Crc32c(AsBytes("123456789")) == 0xe3069283u);
  CHECK(Crc32c({}) == 0u);
}

TEST_CASE("CRC-32C by table and by instruction agree on every length and alignment", "[core][digest]") {
  if (!internal::HasCrc32cInstruction()) WARN("skipped: this processor has no CRC-32C instruction");
  std::vector<std::byte> bytes(300);
  Rng rng(1);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.NextU32());
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t length = 0; begin + length <= 70; ++length) {
      std::span<const std::byte> part = std::span(bytes).subspan(begin, length);
      std::uint32_t by_table = internal::Crc32cTable(part, 77);
      CHECK(Crc32c(part, 77) == by_table);
      if (internal::HasCrc32cInstruction()) CHECK(internal::Crc32cInstruction(part, 77) == by_table);
    }
  }
}

TEST_CASE("a CRC-32C can be continued", "[core][digest]") {
  std::uint32_t first = Crc32c(AsBytes("1234"));
  CHECK(Crc32c(AsBytes("56789"), first) == 0xe3069283u);
  CHECK(internal::Crc32cTable(AsBytes("56789"), first) == 0xe3069283u);
}

TEST_CASE("the masked CRC is that of TFRecord", "[core][digest]") {
  // The length field of a TFRecord of 24 bytes and the checksum that TensorFlow writes behind it.
  std::string length("\x18\0\0\0\0\0\0\0", 8);
  CHECK(MaskedCrc32c(AsBytes(length)) == 0x224b7fa3u);
}

TEST_CASE("SHA-256 gives the values of FIPS 180", "[core][digest]") {
  CHECK(Sha256Hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Sha256Hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("SHA-256 in pieces is that of the whole", "[core][digest]") {
  std::string text(100000, 'x');
  Sha256 digest;
  for (std::size_t begin = 0; begin < text.size(); begin += 777) {
    digest.Update(AsBytes(std::string_view(text).substr(begin, 777)));
  }
  CHECK(digest.HexDigest() == Sha256Hex(text));
}

}  // namespace
}  // namespace evenkeel
