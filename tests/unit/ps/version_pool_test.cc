#include "ps/version_pool.h"

#include <catch2/catch.hpp>

namespace evenkeel::ps {
namespace {

Version At(std::uint64_t commit) { return Version{Generation(1), CommitNumber(commit)}; }

void Write(VersionPool& pool, std::uint64_t commit) {
  VersionPool::Target target = pool.BeginWrite();
  for (float& value : target.to) value = static_cast<float>(commit);
  pool.Publish(target, At(commit));
}

TEST_CASE("a pinned version keeps its floats while newer ones are published", "[ps]") {
  auto pool = *VersionPool::Create(16);
  Write(*pool, 1);
  PinnedVersion first = pool->Newest();
  for (std::uint64_t commit = 2; commit < 10; ++commit) Write(*pool, commit);
  CHECK(first.version == At(1));
  CHECK(first.floats[15] == 1);
  CHECK(pool->Newest().floats[15] == 9);
}

TEST_CASE("with two versions pinned a reader is served from a copy, and the writer never lacks a buffer", "[ps]") {
  auto pool = *VersionPool::Create(16);
  Write(*pool, 1);
  PinnedVersion first = pool->Newest();
  Write(*pool, 2);
  PinnedVersion second = pool->Newest();
  Write(*pool, 3);
  PinnedVersion third = pool->Newest();
  CHECK(third.floats.data() != pool->current().data());
  CHECK(second.floats.data() != first.floats.data());
  VersionPool::Target target = pool->BeginWrite();
  CHECK(target.from.data() == target.to.data());  // nobody reads it
  for (float& value : target.to) value = 4;
  pool->Publish(target, At(4));
  CHECK(first.floats[0] == 1);
  CHECK(second.floats[0] == 2);
  CHECK(third.floats[0] == 3);
  first.owner.reset();
  CHECK(pool->Newest().floats.data() == pool->current().data());  // pinned again
}

TEST_CASE("a version may be held while it is written, if the next write still has a buffer", "[ps]") {
  auto pool = *VersionPool::Create(16);
  Write(*pool, 1);
  VersionPool::Target target = pool->BeginWrite();
  std::optional<PinnedVersion> second = pool->PinTarget(target, At(2));
  REQUIRE(second.has_value());
  CHECK(second->version == At(2));
  CHECK(second->floats.data() == target.to.data());
  for (float& value : target.to) value = 2;
  pool->Publish(target, At(2));
  PinnedVersion newest = pool->Newest();  // of the same buffer
  CHECK(newest.floats.data() == second->floats.data());
  Write(*pool, 3);
  CHECK(second->floats[0] == 2);
  PinnedVersion third = pool->Newest();
  Write(*pool, 4);  // in the one buffer that is left
  target = pool->BeginWrite();
  CHECK(target.from.data() == target.to.data());
  CHECK_FALSE(pool->PinTarget(target, At(5)).has_value());
  pool->Publish(target, At(5));
  CHECK(second->floats[0] == 2);
  CHECK(third.floats[0] == 3);
}

TEST_CASE("a version outlives the pool's owner", "[ps]") {
  auto pool = *VersionPool::Create(16);
  Write(*pool, 1);
  PinnedVersion pinned = pool->Newest();
  pool.reset();
  CHECK(pinned.floats[3] == 1);
}

}  // namespace
}  // namespace evenkeel::ps
