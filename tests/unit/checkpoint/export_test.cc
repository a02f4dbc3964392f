#include "checkpoint/safetensors.h"
#include "unit/checkpoint/fixture.h"

namespace evenkeel {
namespace {

using namespace checkpoint_test;

TEST_CASE("an export holds each tensor under its name, without padding or slots", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const Content content;
  const Manifest manifest = WriteCheckpoint(*storage, "/model", At(1, 7), 3, content);
  Must(ExportCheckpoint(*storage, "/model", At(1, 7), "/model.safetensors"));
  const std::vector<StoredTensor> tensors = Must(ReadSafetensorsHeader(*storage, "/model.safetensors"));
  const std::vector<std::size_t> begins = {0, 16, 64, kParameterFloats};
  REQUIRE(tensors.size() == manifest.tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CHECK(tensors[i].name == manifest.tensors[i].name);
    CHECK(tensors[i].shape == manifest.tensors[i].shape);
    std::vector<float> values(static_cast<std::size_t>(tensors[i].elements));
    Must(storage->ReadAt("/model.safetensors", tensors[i].file_offset, std::as_writable_bytes(std::span(values))));
    CHECK(
        std::equal(values.begin(), values.end(), content.parameters.begin() + static_cast<std::ptrdiff_t>(begins[i])));
  }
}

TEST_CASE("exports by any number of servers are equal bytes", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  for (std::uint32_t servers : {1u, 5u}) {
    const std::string model_dir = absl::StrCat("/model", servers);
    WriteCheckpoint(*storage, model_dir, At(1, 7), servers);
    Must(ExportCheckpoint(*storage, model_dir, At(1, 7), absl::StrCat("/out", servers)));
  }
  CHECK(Must(storage->Read("/out1")) == Must(storage->Read("/out5")));
}

TEST_CASE("a damaged checkpoint is not exported", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", At(1, 7), 1);
  const std::string path = "/model/checkpoints/g1-c7/part-0-of-1.safetensors";
  std::string bytes = Must(storage->Read(path));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  Overwrite(*storage, path, bytes);
  CHECK(absl::IsDataLoss(ExportCheckpoint(*storage, "/model", At(1, 7), "/out")));
  CHECK_FALSE(storage->Exists("/out"));
  CHECK(absl::IsNotFound(ExportCheckpoint(*storage, "/model", At(1, 8), "/out")));
}

}  // namespace
}  // namespace evenkeel
