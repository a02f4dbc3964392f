#include <cstdio>

#include "unit/checkpoint/fixture.h"

namespace evenkeel {
namespace {

using namespace checkpoint_test;

const Version kVersion = At(1, 42);
constexpr char kFolder[] = "/model/checkpoints/g1-c42";

absl::Status OpenStatus(const Storage& storage) { return CheckpointReader::Open(storage, "/model", kVersion).status(); }

std::string Refixed(std::string manifest_text) {
  // The last line is the checksum of all before it: ,\n "crc32c": "xxxxxxxx"\n}\n
  const std::size_t body = manifest_text.rfind(",\n \"crc32c\"");
  manifest_text.resize(body);
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", Crc32c(AsBytes(manifest_text)));
  return manifest_text + ",\n \"crc32c\": \"" + digits + "\"\n}\n";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a flip of any byte of a checkpoint is found and the file is named", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", kVersion, 2);
  REQUIRE(OpenStatus(*storage).ok());
  for (const std::string& name : Must(storage->List(kFolder))) {
    const std::string path = JoinPath(kFolder, name);
    const std::string good = Must(storage->Read(path));
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (int mask : {0x01, 0x20, 0xff}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ mask);
        Overwrite(*storage, path, bad);
        const absl::Status status = OpenStatus(*storage);
        if (!absl::IsDataLoss(status) || status.message().find(name) == std::string_view::npos) {
          FAIL(name << " byte " << i << " mask " << mask << ": " << status);
        }
      }
    }
    Overwrite(*storage, path, good);
  }
  CHECK(OpenStatus(*storage).ok());
}

TEST_CASE("a file that is cut or extended at any place is found", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", kVersion, 2);
  for (const std::string& name : Must(storage->List(kFolder))) {
    const std::string path = JoinPath(kFolder, name);
    const std::string good = Must(storage->Read(path));
    for (std::size_t size = 0; size < good.size(); ++size) {
      Overwrite(*storage, path, good.substr(0, size));
      const absl::Status status = OpenStatus(*storage);
      if (!absl::IsDataLoss(status)) FAIL(name << " cut to " << size << ": " << status);
    }
    Overwrite(*storage, path, good + " ");
    CHECK(absl::IsDataLoss(OpenStatus(*storage)));
    Overwrite(*storage, path, good);
  }
}

TEST_CASE("a missing part is found", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", kVersion, 2);
  Must(storage->Remove(JoinPath(kFolder, "part-1-of-2.safetensors")));
  const absl::Status status = OpenStatus(*storage);
  CHECK(absl::IsDataLoss(status));
  CHECK(status.message().find("part-1-of-2") != std::string_view::npos);
}

TEST_CASE("parts that overlap, leave a gap or hold a foreign array are found", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  const Content content;
  const std::span<const float> all(content.parameters);
  auto open_with = [&](const std::vector<PartArray>& first, const std::vector<PartArray>& second) {
    Manifest manifest = MakeManifest(kVersion);
    Must(storage->MakeFolder(kFolder));
    manifest.parts.push_back(Must(WritePart(*storage, kFolder, "a.safetensors", first)));
    manifest.parts.push_back(Must(WritePart(*storage, kFolder, "b.safetensors", second)));
    Must(WriteManifest(*storage, "/model", manifest));
    return OpenStatus(*storage);
  };
  CHECK(open_with({{"parameters", {{0, all.first(48)}}}}, {{"parameters", {{48, all.subspan(48)}}}}).ok());
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{0, all.first(64)}}}}, {{"parameters", {{48, all.subspan(48)}}}})));
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{0, all.first(32)}}}}, {{"parameters", {{48, all.subspan(48)}}}})));
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{0, all.first(80)}}}}, {})));
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{16, all.first(80)}}}}, {})));
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{0, all}}}}, {{"parameters", {{0, all}}}})));
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{0, all}}}}, {{"gradient", {{0, all.first(80)}}}})));
  // A slot spans the parameters only, and must be whole when it is there.
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{0, all}}}}, {{"slot.m", {{0, all}}}})));
  CHECK(absl::IsDataLoss(open_with({{"parameters", {{0, all}}}}, {{"slot.m", {{0, all.first(64)}}}})));
  CHECK(absl::IsDataLoss(open_with({}, {})));
}

TEST_CASE("a manifest of another format version is named as such", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", kVersion, 1);
  const std::string path = JoinPath(kFolder, "manifest.json");
  const std::string text = Must(storage->Read(path));
  Overwrite(*storage, path, Refixed(Replaced(text, "\"format_version\": 1", "\"format_version\": 2")));
  const absl::Status status = OpenStatus(*storage);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message().find("version 2") != std::string_view::npos);
  const CheckpointList list = Must(ListCheckpoints(*storage, "/model"));
  CHECK(list.versions.empty());
  REQUIRE(list.damaged.size() == 1);
}

TEST_CASE("a hostile manifest with a good checksum is refused", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  WriteCheckpoint(*storage, "/model", kVersion, 1);
  const std::string path = JoinPath(kFolder, "manifest.json");
  const std::string text = Must(storage->Read(path));
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"commit\": 42", "\"commit\": 43"},
      {"\"commit\": 42", "\"commit\": -42"},
      {"\"commit\": 42", "\"commit\": \"42\""},
      {"\"total_floats\": 96", "\"total_floats\": 9223372036854775807"},
      {"\"total_floats\": 96", "\"total_floats\": 1099511627776"},
      {"\"total_floats\": 96", "\"total_floats\": 9600000000000000000"},
      {"\"parameter_floats\": 80", "\"parameter_floats\": -80"},
      {"\"part-0-of-1.safetensors\"", "\"../../../etc/passwd\""},
      {"\"bytes\": ", "\"bytes\": 1"},
      {"\"kind\": \"adam\"", "\"kind\": \"adamant\""},
      {"\"shape\": [", "\"shape\": [4294967296, 4294967296, "},
      {"\"shape\": [", "\"shape\": [-1, "},
      {"\"base64\"", "\"base65\""},
      {"\"dense/table\"", "\"dense/bias\""},
      {"\"final\": true", "\"final\": 1"},
      {"\"tensors\": [", "\"tensors\": 7, \"other\": ["},
  };
  for (const auto& [from, to] : changes) {
    Overwrite(*storage, path, Refixed(Replaced(text, from, to)));
    const absl::Status status = OpenStatus(*storage);
    INFO(from << " -> " << to << ": " << status);
    CHECK(absl::IsDataLoss(status));
  }
}

// Writes the bytes as the only part, with a manifest that vouches for them.
absl::Status OpenWithPart(Storage& storage, const std::string& bytes) {
  Manifest manifest = MakeManifest(kVersion);
  manifest.parts = {{"part.safetensors", bytes.size(), Crc32c(AsBytes(bytes))}};
  Must(storage.MakeFolder(kFolder));
  Overwrite(storage, JoinPath(kFolder, "part.safetensors"), bytes);
  Must(WriteManifest(storage, "/model", manifest));
  return OpenStatus(storage);
}

std::string Part(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + std::string(data_bytes, '\0');
}

TEST_CASE("a hostile part with a good checksum is refused", "[checkpoint]") {
  auto storage = MakeMemoryStorage();
  REQUIRE(
      OpenWithPart(*storage, Part(R"({"parameters/0-96":{"dtype":"F32","shape":[96],"data_offsets":[0,384]}})", 384))
          .ok());
  const std::vector<std::string> parts = {
      "",
      "1234567",
      std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8),
      std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}",
      Part("", 0),
      Part("[]", 0),
      Part("{", 0),
      Part(std::string(100000, '['), 0),
      Part(R"({"parameters/0-96":7})", 384),
      Part(R"({"parameters/0-96":{}})", 384),
      Part(R"({"parameters/0-96":{"dtype":"F16","shape":[96],"data_offsets":[0,384]}})", 384),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[96],"data_offsets":[0,385]}})", 384),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[96],"data_offsets":[384,0]}})", 384),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[95],"data_offsets":[0,384]}})", 384),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[-96],"data_offsets":[0,384]}})", 384),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[4611686018427388000],"data_offsets":[0,384]}})", 384),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[4294967296,4294967296,96],"data_offsets":[0,0]}})", 0),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[96],"data_offsets":[0,384]}})", 388),
      Part(R"({"parameters/0-96":{"dtype":"F32","shape":[96],"data_offsets":[0,1e3]}})", 384),
      Part(R"({"parameters/0-48":{"dtype":"F32","shape":[48],"data_offsets":[0,192]},)"
           R"("parameters/48-96":{"dtype":"F32","shape":[48],"data_offsets":[96,288]}})",
           288),
      Part(R"({"parameters/0-9999999999999999999999":{"dtype":"F32","shape":[96],"data_offsets":[0,384]}})", 384),
      Part(R"({"parameters/-16-80":{"dtype":"F32","shape":[96],"data_offsets":[0,384]}})", 384),
      Part(R"({"parameters/0-97":{"dtype":"F32","shape":[96],"data_offsets":[0,384]}})", 384),
      Part(R"({"parameters":{"dtype":"F32","shape":[96],"data_offsets":[0,384]}})", 384),
  };
  for (const std::string& part : parts) {
    const absl::Status status = OpenWithPart(*storage, part);
    INFO(part.substr(0, 120) << ": " << status);
    CHECK(absl::IsDataLoss(status));
    CHECK(status.message().find("g1-c42") != std::string_view::npos);
  }
}

}  // namespace
}  // namespace evenkeel
