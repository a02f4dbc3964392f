#include <array>
#include <catch2/catch.hpp>

#include "evenkeel/protocol/stream.h"

namespace evenkeel {
namespace {

TEST_CASE("a payload that lies where it belongs is not copied onto itself", "[transport][fast]") {
  std::array<std::byte, 6> memory{};
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i + 1);
  const std::array<std::byte, 2> elsewhere = {std::byte{9}, std::byte{8}};
  const std::array<std::span<const std::byte>, 3> pieces = {std::span<const std::byte>(memory).first(2), elsewhere,
                                                            std::span<const std::byte>(memory).subspan(4)};
  CHECK(PayloadIn(pieces).CopyTo(memory));  // ASan would tell of a memcpy onto itself
  CHECK(memory ==
        std::array<std::byte, 6>{std::byte{1}, std::byte{2}, std::byte{9}, std::byte{8}, std::byte{5}, std::byte{6}});
}

}  // namespace
}  // namespace evenkeel
