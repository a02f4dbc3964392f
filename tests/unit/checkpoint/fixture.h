// A small model, its flat vector, and checkpoints of it written by any number of servers.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"

namespace evenkeel::checkpoint_test {

inline Version At(std::uint64_t generation, std::uint64_t commit) {
  return {Generation(generation), CommitNumber(commit)};
}

template <class T>
T Must(absl::StatusOr<T> value) {
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return *std::move(value);
}
inline void Must(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}

// Three trainable tensors and a statistic; with the padding 16 + 48 + 16 parameters and 16 statistics.
constexpr std::int64_t kParameterFloats = 80;
constexpr std::int64_t kTotalFloats = 96;

inline Manifest MakeManifest(Version version) {
  Manifest manifest;
  manifest.job_id = "job-7";
  manifest.spec_hash = "abc123";
  manifest.experiment_json = R"({"name":"tiny","note":"quote \" and é"})";
  manifest.term = Term(3);
  manifest.version = version;
  manifest.seed = 0xfedcba9876543210;  // needs all 64 bits
  manifest.tensors = {
      {"dense/weight", Shape{3, 4}, {InitializerSpec::Kind::kGlorotUniform, 0, 0.1f, 3, 4}},
      {"dense/table", Shape{5, 7}, {InitializerSpec::Kind::kTruncatedNormal, 0, 0.02f, 5, 7}},
      {"dense/bias", Shape{4}, {InitializerSpec::Kind::kConstant, 0.25f, 0, 1, 1}, false, 0.9f, false},
      {"norm/mean", Shape{4}, {InitializerSpec::Kind::kZeros}, true, 0.99f, false},
  };
  manifest.optimizer.kind = OptimizerSpec::Kind::kAdam;
  manifest.optimizer.epsilon = 1e-7f;
  manifest.optimizer.clip_norm = 5;
  manifest.parameter_floats = kParameterFloats;
  manifest.total_floats = kTotalFloats;
  manifest.data_fingerprint = "fp";
  manifest.data_statistics_json = R"({"mean":[0.5]})";
  manifest.samples_trained = 12345;
  manifest.epochs = 1.25;
  manifest.chief_state = std::string("\x00\xff\x80ledger", 9);
  manifest.created_unix_ms = 1700000000123;
  manifest.final = true;
  return manifest;
}

inline std::vector<float> Values(std::int64_t count, std::uint64_t key) {
  Rng rng(key);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.NextNormal());
  return values;
}

struct Content {
  std::vector<float> parameters = Values(kTotalFloats, 1);
  std::vector<float> m = Values(kParameterFloats, 2);
  std::vector<float> v = Values(kParameterFloats, 3);
};

// Each bucket of 32 floats striped at multiples of 16 over the servers, as a layout would: a server holds several
// stretches of each array, and of many servers some hold none.
inline PartArray ArrayOf(const std::string& name, const std::vector<float>& values, std::uint32_t server,
                         std::uint32_t servers) {
  PartArray array{name, {}};
  const auto size = static_cast<std::int64_t>(values.size());
  for (std::int64_t bucket = 0; bucket < size; bucket += 32) {
    const std::int64_t blocks = std::min<std::int64_t>(32, size - bucket) / 16;
    const std::int64_t begin = bucket + blocks * server / servers * 16;
    const std::int64_t end = bucket + blocks * (server + 1) / servers * 16;
    array.segments.push_back(
        {begin, std::span(values).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))});
  }
  return array;
}

inline Manifest WriteCheckpoint(Storage& storage, const std::string& model_dir, Version version, std::uint32_t servers,
                                const Content& content = {}) {
  Manifest manifest = MakeManifest(version);
  const std::string folder = CheckpointFolder(model_dir, version);
  Must(storage.MakeFolder(folder));
  for (std::uint32_t server = 0; server < servers; ++server) {
    manifest.parts.push_back(Must(
        WritePart(storage, folder, PartFileName(ServerIndex(server), servers),
                  {ArrayOf("parameters", content.parameters, server, servers),
                   ArrayOf("slot.m", content.m, server, servers), ArrayOf("slot.v", content.v, server, servers)})));
  }
  Must(WriteManifest(storage, model_dir, manifest));
  return manifest;
}

inline void Overwrite(Storage& storage, const std::string& path, const std::string& bytes) {
  Must(storage.WriteAtomic(path, AsBytes(bytes)));
}

// A folder on disk that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() / absl::StrCat("evenkeel-test-", absl::Hex(RandomNonce()))) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace evenkeel::checkpoint_test
