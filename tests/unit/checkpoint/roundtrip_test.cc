#include "nlohmann/json.hpp"
#include "unit/checkpoint/fixture.h"

namespace evenkeel {
namespace {

using namespace checkpoint_test;

// The wanted number of readers each takes an even share of each array, wherever the writers cut it.
void CheckUnderCuts(const CheckpointReader& reader, const std::string& array, const std::vector<float>& expected) {
  for (std::size_t readers : {1u, 2u, 3u, 5u, 7u}) {
    std::vector<float> got;
    for (std::size_t i = 0; i < readers; ++i) {
      const std::size_t begin = expected.size() * i / readers;
      const std::size_t end = expected.size() * (i + 1) / readers;
      std::vector<float> share(end - begin);
      Must(reader.Read(array, static_cast<std::int64_t>(begin), share));
      got.insert(got.end(), share.begin(), share.end());
    }
    REQUIRE(got == expected);
  }
}

void CheckRoundtrip(Storage& storage, const std::string& model_dir) {
  const Content content;
  std::string digest;
  for (std::uint32_t servers : {1u, 2u, 3u, 5u}) {
    INFO("servers " << servers);
    const Version version = At(1, servers);
    WriteCheckpoint(storage, model_dir, version, servers, content);
    CheckpointReader reader = Must(CheckpointReader::Open(storage, model_dir, version));
    CheckUnderCuts(reader, "parameters", content.parameters);
    CheckUnderCuts(reader, "slot.m", content.m);
    CheckUnderCuts(reader, "slot.v", content.v);
    const std::string sha = Must(ParametersSha256(reader));
    if (digest.empty()) digest = sha;
    CHECK(sha == digest);
  }
  const std::string_view bytes(reinterpret_cast<const char*>(content.parameters.data()),
                               content.parameters.size() * sizeof(float));
  CHECK(digest == Sha256Hex(bytes));
}

TEST_CASE("any number of servers' parts read back under any cut, in memory", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  CheckRoundtrip(*storage, "/model");
}

TEST_CASE("any number of servers' parts read back under any cut, on disk", "[checkpoint]") {
  TemporaryFolder folder;
  CheckRoundtrip(Storage::Posix(), JoinPath(folder.path(), "model"));
}

TEST_CASE("values beyond one chunk are written and read whole", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  Manifest manifest;
  manifest.version = At(1, 1);
  manifest.tensors = {{"big", Shape{1 << 20}}};
  manifest.parameter_floats = manifest.total_floats = 1 << 20;
  const std::vector<float> values = Values(1 << 20, 9);
  const std::string folder = CheckpointFolder("/model", manifest.version);
  Must(storage->MakeFolder(folder));
  manifest.parts.push_back(
      Must(WritePart(*storage, folder, "part-0-of-1.safetensors", {{"parameters", {{0, values}}}})));
  Must(WriteManifest(*storage, "/model", manifest));
  CheckpointReader reader = Must(CheckpointReader::Open(*storage, "/model", manifest.version));
  CHECK(Must(reader.ReadTensor("big")) == values);
  CHECK(Must(ParametersSha256(reader)) ==
        Sha256Hex({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}));
}

TEST_CASE("a part's size and checksum are those of its bytes", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const Manifest manifest = WriteCheckpoint(*storage, "/model", At(1, 2), 2);
  for (const PartInfo& part : manifest.parts) {
    const std::string bytes = Must(storage->Read(JoinPath(CheckpointFolder("/model", At(1, 2)), part.file)));
    CHECK(part.bytes == bytes.size());
    CHECK(part.crc32c == Crc32c(AsBytes(bytes)));
  }
}

TEST_CASE("every field of a manifest survives", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  for (const std::string& chief_state :
       {std::string("{\"epoch\": 3}"), std::string("\x00\xff\x80", 3), std::string()}) {
    Manifest written = MakeManifest(At(2, 9));
    written.chief_state = chief_state;
    written.parts = {{"part-0-of-1.safetensors", 1234567890123, 0xffffffff}};
    Must(WriteManifest(*storage, "/model", written));
    const Manifest read = Must(ReadManifest(*storage, "/model", At(2, 9)));
    CHECK(read.job_id == written.job_id);
    CHECK(read.spec_hash == written.spec_hash);
    CHECK(read.experiment_json == written.experiment_json);
    CHECK(read.term == written.term);
    CHECK(read.version == written.version);
    CHECK(read.seed == written.seed);
    CHECK(read.tensors == written.tensors);
    CHECK(read.optimizer == written.optimizer);
    CHECK(read.parameter_floats == written.parameter_floats);
    CHECK(read.total_floats == written.total_floats);
    CHECK(read.data_fingerprint == written.data_fingerprint);
    CHECK(read.data_statistics_json == written.data_statistics_json);
    CHECK(read.samples_trained == written.samples_trained);
    CHECK(read.epochs == written.epochs);
    CHECK(read.chief_state == written.chief_state);
    CHECK(read.parts == written.parts);
    CHECK(read.created_unix_ms == written.created_unix_ms);
    CHECK(read.final == written.final);
  }
}

TEST_CASE("every optimizer and initializer survives", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  for (int kind = 0; kind <= static_cast<int>(InitializerSpec::Kind::kLecunNormal); ++kind) {
    Manifest written = MakeManifest(At(1, 1));
    written.tensors[0].initializer.kind = static_cast<InitializerSpec::Kind>(kind);
    written.optimizer.kind = static_cast<OptimizerSpec::Kind>(kind % 8);
    Must(WriteManifest(*storage, "/model", written));
    const Manifest read = Must(ReadManifest(*storage, "/model", At(1, 1)));
    CHECK(read.tensors == written.tensors);
    CHECK(read.optimizer == written.optimizer);
  }
}

TEST_CASE("a manifest is JSON with numbers for ids", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", At(4, 17), 1);
  const auto json = nlohmann::json::parse(Must(storage->Read("/model/checkpoints/g4-c17/manifest.json")));
  CHECK(json["format_version"] == 1);
  CHECK(json["generation"] == 4);
  CHECK(json["commit"] == 17);
  CHECK(json["term"] == 3);
  CHECK(json["seed"] == 0xfedcba9876543210u);
  CHECK(json["chief_state_encoding"] == "base64");
}

TEST_CASE("equal manifests are equal bytes", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/a", At(1, 1), 2);
  WriteCheckpoint(*storage, "/b", At(1, 1), 2);
  CHECK(Must(storage->Read("/a/checkpoints/g1-c1/manifest.json")) ==
        Must(storage->Read("/b/checkpoints/g1-c1/manifest.json")));
}

TEST_CASE("a tensor is read by name from wherever its values lie", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const Content content;
  WriteCheckpoint(*storage, "/model", At(1, 1), 3, content);
  CheckpointReader reader = Must(CheckpointReader::Open(*storage, "/model", At(1, 1)));
  auto expected = [&](std::ptrdiff_t begin, std::ptrdiff_t count) {
    return std::vector<float>(content.parameters.begin() + begin, content.parameters.begin() + begin + count);
  };
  CHECK(Must(reader.ReadTensor("dense/weight")) == expected(0, 12));
  CHECK(Must(reader.ReadTensor("dense/table")) == expected(16, 35));
  CHECK(Must(reader.ReadTensor("dense/bias")) == expected(64, 4));
  CHECK(Must(reader.ReadTensor("norm/mean")) == expected(kParameterFloats, 4));
  CHECK(absl::IsNotFound(reader.ReadTensor("dense/none").status()));
}

TEST_CASE("reads outside an array and of unknown arrays are errors", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", At(1, 1), 2);
  CheckpointReader reader = Must(CheckpointReader::Open(*storage, "/model", At(1, 1)));
  std::vector<float> out(2);
  CHECK(absl::IsOutOfRange(reader.Read("parameters", kTotalFloats - 1, out)));
  CHECK(absl::IsOutOfRange(reader.Read("parameters", -1, out)));
  CHECK(absl::IsOutOfRange(reader.Read("slot.m", kParameterFloats - 1, out)));
  CHECK(absl::IsOutOfRange(reader.Read("slot.m", std::numeric_limits<std::int64_t>::max(), out)));
  CHECK(absl::IsNotFound(reader.Read("slot.none", 0, out)));
  CHECK(reader.Read("slot.m", kParameterFloats, {}).ok());
}

TEST_CASE("a manifest that could not be read back is refused when written", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  auto refuses = [&](auto change) {
    Manifest manifest = MakeManifest(At(1, 1));
    change(manifest);
    return absl::IsInvalidArgument(WriteManifest(*storage, "/model", manifest));
  };
  CHECK(refuses([](Manifest& m) { m.epochs = std::numeric_limits<double>::quiet_NaN(); }));
  CHECK(refuses([](Manifest& m) { m.optimizer.beta1 = std::numeric_limits<float>::infinity(); }));
  CHECK(refuses([](Manifest& m) { m.job_id = "\xff"; }));
  CHECK(refuses([](Manifest& m) { m.tensors[1].name = m.tensors[0].name; }));
  CHECK(refuses([](Manifest& m) { std::swap(m.tensors[0], m.tensors[3]); }));
  CHECK(refuses([](Manifest& m) { m.tensors[0].shape = Shape{1 << 20, 1 << 20, 1 << 20, 1 << 20}; }));
  CHECK(refuses([](Manifest& m) { m.tensors[2].shape = Shape{17}; }));
  CHECK(refuses([](Manifest& m) { m.parameter_floats = kTotalFloats + 16; }));
  CHECK(refuses([](Manifest& m) { m.parts = {{"../part", 1, 1}}; }));
  CHECK_FALSE(storage->Exists("/model/checkpoints/g1-c1/manifest.json"));
}

}  // namespace
}  // namespace evenkeel
