#include <algorithm>

#include "absl/strings/str_cat.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

absl::Status WriteSafetensors(Storage& storage, const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.shape.elements() != static_cast<std::int64_t>(tensor.data.size())) {
      return absl::InvalidArgumentError(absl::StrCat("[write safetensors] ", path, ": tensor \"", tensor.name,
                                                     "\" has ", tensor.data.size(), " values, its shape is ",
                                                     tensor.shape.ToString()));
    }
    entries.push_back({tensor.name, tensor.shape});
  }
  EK_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(storage, path, entries, metadata));
  for (const NamedTensor& tensor : tensors) EK_RETURN_IF_ERROR(writer.Append(tensor.data));
  return writer.Finish().status();
}

absl::Status ExportCheckpoint(Storage& storage, const std::string& model_dir, Version version, const std::string& out) {
  EK_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(storage, model_dir, version));
  const Manifest& manifest = reader.manifest();
  std::vector<SafetensorsEntry> entries;
  for (const TensorSpec& tensor : manifest.tensors) entries.push_back({tensor.name, tensor.shape});
  EK_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::Create(storage, out, entries,
                                                {{"producer", "evenkeel"},
                                                 {"job_id", manifest.job_id},
                                                 {"checkpoint", CheckpointName(version)},
                                                 {"samples_trained", absl::StrCat(manifest.samples_trained)},
                                                 {"data_statistics", manifest.data_statistics_json}}));
  EK_ASSIGN_OR_RETURN(std::vector<FlatPlace> places, PlaceTensors(manifest));
  std::vector<float> chunk(kCheckpointChunkBytes / sizeof(float));
  for (const FlatPlace& place : places) {
    for (std::int64_t done = 0; done < place.elements;) {
      const std::int64_t count = std::min<std::int64_t>(place.elements - done, static_cast<std::int64_t>(chunk.size()));
      const std::span<float> values = std::span(chunk).first(static_cast<std::size_t>(count));
      EK_RETURN_IF_ERROR(reader.Read("parameters", place.begin + done, values));
      EK_RETURN_IF_ERROR(writer.Append(values));
      done += count;
    }
  }
  return writer.Finish().status();
}

}  // namespace evenkeel
