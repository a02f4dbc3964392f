// The on-disk form of a checkpoint.
//
//   MODEL_DIR/checkpoints/g1-c42/part-0-of-2.safetensors   one a server: stripes of the flat vector and of each slot
//   MODEL_DIR/checkpoints/g1-c42/manifest.json             written last; a folder without it does not count
//
// A part is a safetensors file whose tensors are float32 vectors named ARRAY/BEGIN-END: elements [BEGIN, END) of the
// flat array. ARRAY is "parameters" (the whole flat vector, statistics included) or "slot.NAME" (over the parameters
// segment). The manifest carries each part's size and CRC-32C, and its own.
//
// Threading: free functions are thread-safe for distinct paths; a reader is for one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/specs.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {

struct FlatSegment {
  std::int64_t begin = 0;  // floats in the flat array
  std::span<const float> data;
};
struct PartArray {
  std::string name;  // "parameters", "slot.m"
  std::vector<FlatSegment> segments;
};
struct PartInfo {
  std::string file;  // name in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const PartInfo&, const PartInfo&) = default;
};

struct Manifest {
  static constexpr int kFormatVersion = 1;
  std::string job_id;
  std::string spec_hash;
  std::string experiment_json;  // canonical
  Term term;
  Version version;
  std::uint64_t seed = 0;
  std::vector<TensorSpec> tensors;
  OptimizerSpec optimizer;
  std::int64_t parameter_floats = 0;  // of the flat vector's parameters segment
  std::int64_t total_floats = 0;      // with statistics
  std::string data_fingerprint;
  std::string data_statistics_json;
  std::int64_t samples_trained = 0;
  double epochs = 0;        // passes over the data, with fraction
  std::string chief_state;  // opaque to all but the chief: ledger, controller, schedule
  std::vector<PartInfo> parts;
  std::int64_t created_unix_ms = 0;
  bool final = false;  // the job ended here
};

// "g1-c42"
std::string CheckpointName(Version version);
std::string CheckpointFolder(const std::string& model_dir, Version version);
absl::StatusOr<Version> ParseCheckpointName(std::string_view name);

// "part-0-of-2.safetensors"
std::string PartFileName(ServerIndex server, std::uint32_t servers);
// Writes `folder`/`file` under a temporary name, syncs and renames it; streams, holding no second copy of the data. The
// folder must exist. Empty segments leave no trace; a part without any is valid.
absl::StatusOr<PartInfo> WritePart(Storage& storage, const std::string& folder, const std::string& file,
                                   const std::vector<PartArray>& arrays);

// Syncs the checkpoint's folder and those above it, then writes the manifest atomically; the checkpoint counts from
// then on. Errors: kInvalidArgument for what could not be read back (tensors that do not fit, text that is not UTF-8;
// only chief_state may be any bytes).
absl::Status WriteManifest(Storage& storage, const std::string& model_dir, const Manifest& manifest);

// Complete checkpoints (with a readable manifest of a known format), ascending by version. A manifest that is damaged
// is an entry of `damaged`, a sentence each.
struct CheckpointList {
  std::vector<Version> versions;
  std::vector<std::string> damaged;
};
absl::StatusOr<CheckpointList> ListCheckpoints(const Storage& storage, const std::string& model_dir);
// Errors: kDataLoss names the file and what is wrong; kInvalidArgument for a format of another version; kNotFound.
absl::StatusOr<Manifest> ReadManifest(const Storage& storage, const std::string& model_dir, Version version);
// Takes the manifest away first, so that what a crash leaves does not count. Errors: kNotFound.
absl::Status RemoveCheckpoint(Storage& storage, const std::string& model_dir, Version version);

// The versions to delete so that keep_max newest and those whose commit is a multiple of keep_every (0: none) stay.
// `pinned` are kept too (the best, one being read), and the newest whatever keep_max says. Commit 0 counts only while
// it is the newest.
std::vector<Version> CheckpointsToRemove(std::span<const Version> ascending, std::int64_t keep_max,
                                         std::int64_t keep_every, std::span<const Version> pinned);

class CheckpointReader {
 public:
  // Reads the manifest and checks every part's size and checksum and that the parts cover each array exactly once.
  // Reads in chunks: memory does not grow with the parts. `storage` must outlive the reader. Errors: kDataLoss names
  // the file and what is wrong; kInvalidArgument for a format of another version; kNotFound.
  static absl::StatusOr<CheckpointReader> Open(const Storage& storage, const std::string& model_dir, Version version);
  const Manifest& manifest() const;
  // Elements [begin, begin + out.size()) of an array, from however many parts hold them.
  // Errors: kNotFound for an array that no part holds; kOutOfRange.
  absl::Status Read(std::string_view array, std::int64_t begin, std::span<float> out) const;
  // One tensor's values, by name. Errors: kNotFound.
  absl::StatusOr<std::vector<float>> ReadTensor(std::string_view name) const;

  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

 private:
  struct State;
  explicit CheckpointReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A plain safetensors file of named float32 tensors, as Python's safetensors reads it. Written atomically.
struct NamedTensor {
  std::string name;
  Shape shape;
  std::span<const float> data;
};
absl::Status WriteSafetensors(Storage& storage, const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata);
// Exports a checkpoint's tensors under their names.
absl::Status ExportCheckpoint(Storage& storage, const std::string& model_dir, Version version, const std::string& out);
// SHA-256 over the flat vector (float32, little endian, padding included): 64 hex digits.
absl::StatusOr<std::string> ParametersSha256(const CheckpointReader& reader);

}  // namespace evenkeel
