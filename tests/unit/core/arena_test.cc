#include "evenkeel/core/arena.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

TEST_CASE("an arena is zeroed, writable and aligned", "[core][arena]") {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{3} << 20, (std::size_t{4} << 20) + 1}) {
    absl::StatusOr<Arena> arena = Arena::Allocate(bytes);
    REQUIRE(arena.ok());
    CHECK(arena->size() == bytes);
    std::size_t alignment = bytes >= (2u << 20) ? 2u << 20 : 64;
    CHECK(reinterpret_cast<std::uintptr_t>(arena->data()) % alignment == 0);
    std::span<std::byte> all(arena->data(), arena->size());
    CHECK(std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0}; }));
    std::fill(all.begin(), all.end(), std::byte{7});
    CHECK(all.back() == std::byte{7});
    CHECK(arena->floats().size() == bytes / 4);
  }
}

TEST_CASE("an arena of no bytes is empty", "[core][arena]") {
  absl::StatusOr<Arena> arena = Arena::Allocate(0);
  REQUIRE(arena.ok());
  CHECK(arena->data() == nullptr);
  CHECK(arena->size() == 0);
}

TEST_CASE("moving an arena takes its memory along", "[core][arena]") {
  Arena from = *Arena::Allocate(100);
  from.data()[99] = std::byte{5};
  const std::byte* memory = from.data();
  Arena to(std::move(from));
  CHECK(to.data() == memory);
  Arena over = *Arena::Allocate(200);
  over = std::move(to);
  CHECK(over.data() == memory);
  CHECK(over.size() == 100);
  CHECK(over.data()[99] == std::byte{5});
}

TEST_CASE("an arena larger than the address space is an error that names the bytes", "[core][arena]") {
  absl::StatusOr<Arena> arena = Arena::Allocate(std::size_t{1} << 62);
  REQUIRE(absl::IsResourceExhausted(arena.status()));
  CHECK_THAT(std::string(arena.status().message()), Catch::Contains("4611686018427387904 bytes"));
  CHECK(absl::IsResourceExhausted(Arena::Allocate(SIZE_MAX).status()));
}

}  // namespace
}  // namespace evenkeel
