#include "checkpoint/safetensors.h"

#include <cstring>

#include "unit/checkpoint/fixture.h"

namespace evenkeel {
namespace {

using namespace checkpoint_test;

TEST_CASE("a safetensors file has these bytes", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const std::vector<float> values = {1.0f, -2.0f};
  Must(WriteSafetensors(*storage, "a.safetensors", {{"w", Shape{2, 1}, values}}, {{"k", "v"}}));
  const std::string header = R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  REQUIRE(header.size() == 81);
  const std::string expected = std::string("\x58\0\0\0\0\0\0\0", 8) + header + std::string(7, ' ') +
                               std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);
  CHECK(Must(storage->Read("a.safetensors")) == expected);
}

TEST_CASE("a safetensors header gives back names, shapes and places", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const std::vector<float> values = Values(30, 1);
  const std::span<const float> all(values);
  Must(WriteSafetensors(*storage, "a",
                        {{"z \"quoted\"", Shape{2, 3}, all.first(6)},
                         {"empty", Shape{0, 5}, {}},
                         {"scalar", Shape{}, all.subspan(6, 1)},
                         {"a", Shape{23}, all.subspan(7)}},
                        {}));
  const std::vector<StoredTensor> tensors = Must(ReadSafetensorsHeader(*storage, "a"));
  REQUIRE(tensors.size() == 4);
  CHECK(tensors[0].name == "z \"quoted\"");
  CHECK(tensors[0].shape == Shape{2, 3});
  CHECK(tensors[1].shape == Shape{0, 5});
  CHECK(tensors[2].shape == Shape{});
  CHECK(tensors[3].elements == 23);
  CHECK(tensors[0].file_offset % 8 == 0);
  const std::string bytes = Must(storage->Read("a"));
  CHECK(std::memcmp(bytes.data() + tensors[3].file_offset, values.data() + 7, 23 * sizeof(float)) == 0);
}

TEST_CASE("a safetensors writer refuses what a reader would", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const std::vector<float> values(4);
  CHECK(absl::IsInvalidArgument(WriteSafetensors(*storage, "a", {{"w", Shape{5}, values}}, {})));
  CHECK(
      absl::IsInvalidArgument(WriteSafetensors(*storage, "a", {{"w", Shape{4}, values}, {"w", Shape{4}, values}}, {})));
  CHECK(absl::IsInvalidArgument(WriteSafetensors(*storage, "a", {{"__metadata__", Shape{4}, values}}, {})));
  CHECK(absl::IsInvalidArgument(WriteSafetensors(*storage, "a", {{"\xff", Shape{4}, values}}, {})));
  CHECK(Must(storage->List("")).empty());
}

TEST_CASE("a safetensors file that was not finished leaves nothing", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const std::vector<SafetensorsEntry> entries = {{"w", Shape{4}}};
  const std::vector<float> values(3);
  {
    SafetensorsWriter writer = Must(SafetensorsWriter::Create(*storage, "a", entries, {}));
    Must(writer.Append(values));
    CHECK(absl::IsInvalidArgument(writer.Finish().status()));
    CHECK(absl::IsInvalidArgument(writer.Append(values)));
  }
  CHECK(Must(storage->List("")).empty());
}

}  // namespace
}  // namespace evenkeel
