#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "nlohmann/json.hpp"

namespace evenkeel {

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian floats");

namespace {

using nlohmann::json;

constexpr char kMetadataKey[] = "__metadata__";
constexpr std::uint64_t kLengthBytes = 8;

absl::StatusOr<std::string> Quoted(const std::string& text, const std::string& path) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    return absl::InvalidArgumentError(absl::StrCat("[write safetensors] ", path, ": a name or metadata is not UTF-8"));
  }
}

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat("[read safetensors] ", path, ": ", what));
}

// Length, header and padding. `data_bytes` receives what must follow.
absl::StatusOr<std::string> MakeHeader(const std::string& path, std::span<const SafetensorsEntry> entries,
                                       const SafetensorsMetadata& metadata, std::uint64_t& data_bytes) {
  // Joined by hand: an ordered JSON object searches all earlier keys at each insertion.
  std::string header(kLengthBytes, '\0');
  header += '{';
  const char* separator = "";
  if (!metadata.empty()) {
    absl::StrAppend(&header, "\"", kMetadataKey, "\":{");
    for (const auto& [key, value] : metadata) {
      EK_ASSIGN_OR_RETURN(std::string quoted_key, Quoted(key, path));
      EK_ASSIGN_OR_RETURN(std::string quoted_value, Quoted(value, path));
      absl::StrAppend(&header, separator, quoted_key, ":", quoted_value);
      separator = ",";
    }
    header += '}';
    separator = ",";
  }
  std::unordered_set<std::string> seen{kMetadataKey};
  data_bytes = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (!seen.insert(entry.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("[write safetensors] ", path, ": the tensor name \"", entry.name, "\" is reserved or repeated"));
    }
    EK_ASSIGN_OR_RETURN(std::string quoted, Quoted(entry.name, path));
    const std::uint64_t end = data_bytes + static_cast<std::uint64_t>(entry.shape.elements()) * sizeof(float);
    absl::StrAppend(&header, separator, quoted, ":{\"dtype\":\"F32\",\"shape\":[",
                    absl::StrJoin(entry.shape.dims(), ","), "],\"data_offsets\":[", data_bytes, ",", end, "]}");
    data_bytes = end;
    separator = ",";
  }
  header += '}';
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');
  const std::uint64_t length = header.size() - kLengthBytes;
  if (length > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("[write safetensors] ", path, ": a header of ", length,
                                                   " bytes; at most ", kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  for (std::size_t i = 0; i < kLengthBytes; ++i) header[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return header;
}

// One entry of a header, its offsets relative to the data.
absl::StatusOr<StoredTensor> ParseEntry(const std::string& path, const std::string& name, const json& entry,
                                        std::uint64_t data_bytes) {
  auto wrong = [&](std::string_view what) {
    return Damaged(path, absl::StrCat("tensor \"", name.substr(0, 200), "\" ", std::string(what)));
  };
  if (!entry.is_object()) return wrong("is not described by an object");
  auto dtype = entry.find("dtype");
  if (dtype == entry.end() || *dtype != "F32") return wrong("is not of dtype F32");
  auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return wrong("has no pair of data_offsets");
  }
  const auto begin = (*offsets)[0].get<std::uint64_t>();
  const auto end = (*offsets)[1].get<std::uint64_t>();
  if (begin > end || end > data_bytes) {
    return wrong(absl::StrCat("lies at bytes ", begin, " to ", end, " of ", data_bytes, " bytes of data"));
  }
  auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array() || shape->size() > 32) return wrong("has no shape");
  std::vector<std::int64_t> dims;
  std::uint64_t elements = 1;
  for (const json& dim : *shape) {
    if (!dim.is_number_unsigned()) return wrong("has a dimension that is not a number");
    const auto value = dim.get<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        __builtin_mul_overflow(elements, value, &elements)) {
      return wrong("has a dimension that is too large");
    }
    dims.push_back(static_cast<std::int64_t>(value));
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, sizeof(float), &bytes) || bytes != end - begin) {
    return wrong(absl::StrCat("has ", end - begin, " bytes, but its shape asks for ", elements, " floats"));
  }
  return StoredTensor{name, Shape(dims), static_cast<std::int64_t>(elements), begin};
}

}  // namespace

struct SafetensorsWriter::State {
  Storage* storage;
  std::string path;
  std::string temporary;
  std::unique_ptr<WritableFile> file;
  std::uint64_t expected_bytes = 0;  // of the whole file
  Sum sum;
  bool finished = false;

  ~State() {
    if (finished) return;
    file.reset();
    // The name is unique, so a file that stays behind is litter, not harm.
    storage->Remove(temporary).IgnoreError();
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(Storage& storage, std::string path,
                                                            std::span<const SafetensorsEntry> entries,
                                                            const SafetensorsMetadata& metadata) {
  std::uint64_t data_bytes = 0;
  EK_ASSIGN_OR_RETURN(std::string header, MakeHeader(path, entries, metadata, data_bytes));
  // A process that was thought dead may still write the same file: each writer has a name of its own.
  std::string temporary = absl::StrCat(path, ".tmp.", absl::Hex(RandomNonce(), absl::kZeroPad16));
  EK_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, storage.Open(temporary, Storage::Create::kExclusive));
  auto state = std::make_unique<State>();
  state->storage = &storage;
  state->path = std::move(path);
  state->temporary = std::move(temporary);
  state->file = std::move(file);
  state->expected_bytes = header.size() + data_bytes;
  SafetensorsWriter writer(std::move(state));
  EK_RETURN_IF_ERROR(writer.AppendBytes(AsBytes(header)));
  return writer;
}

absl::Status SafetensorsWriter::AppendBytes(std::span<const std::byte> bytes) {
  if (bytes.size() > state_->expected_bytes - state_->sum.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("[write safetensors] ", state_->path, ": more than the ",
                                                   state_->expected_bytes, " bytes that its header says"));
  }
  // Chunk by chunk, so that the bytes are still in cache when they are written.
  while (!bytes.empty()) {
    auto chunk = bytes.first(std::min(bytes.size(), kCheckpointChunkBytes));
    EK_RETURN_IF_ERROR(state_->file->Append(chunk));
    state_->sum.crc32c = Crc32c(chunk, state_->sum.crc32c);
    state_->sum.bytes += chunk.size();
    bytes = bytes.subspan(chunk.size());
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Append(std::span<const float> values) { return AppendBytes(std::as_bytes(values)); }

absl::StatusOr<SafetensorsWriter::Sum> SafetensorsWriter::Finish() {
  if (state_->sum.bytes != state_->expected_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("[write safetensors] ", state_->path, ": ", state_->sum.bytes,
                                                   " bytes, but its header says ", state_->expected_bytes));
  }
  EK_RETURN_IF_ERROR(state_->file->Sync());
  EK_RETURN_IF_ERROR(state_->file->Close());
  EK_RETURN_IF_ERROR(state_->storage->Rename(state_->temporary, state_->path));
  state_->finished = true;
  return state_->sum;
}

absl::StatusOr<std::vector<StoredTensor>> ReadSafetensorsHeader(const Storage& storage, const std::string& path) {
  EK_ASSIGN_OR_RETURN(std::uint64_t size, storage.Size(path));
  std::array<std::byte, kLengthBytes> length_bytes;
  if (size < length_bytes.size()) return Damaged(path, absl::StrCat("ends after ", size, " bytes"));
  EK_RETURN_IF_ERROR(storage.ReadAt(path, 0, length_bytes));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(length_bytes[i]) << (8 * i);
  if (length > size - kLengthBytes || length > kMaxSafetensorsHeaderBytes) {
    return Damaged(path, absl::StrCat("a header of ", length, " bytes in a file of ", size, " bytes; at most ",
                                      kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  std::string text(length, '\0');
  EK_RETURN_IF_ERROR(storage.ReadAt(path, kLengthBytes, std::as_writable_bytes(std::span<char>(text))));
  const json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Damaged(path, "its header is not a JSON object");

  const std::uint64_t data_bytes = size - kLengthBytes - length;
  std::vector<StoredTensor> tensors;
  tensors.reserve(header.size());
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) continue;
    EK_ASSIGN_OR_RETURN(StoredTensor tensor, ParseEntry(path, name, entry, data_bytes));
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.file_offset, a.elements) < std::pair(b.file_offset, b.elements);
  });
  std::uint64_t next = 0;
  for (StoredTensor& tensor : tensors) {
    if (tensor.file_offset != next) {
      return Damaged(path, absl::StrCat("tensor \"", tensor.name.substr(0, 200), "\" begins at byte ",
                                        tensor.file_offset, " of the data; the one before it ends at ", next));
    }
    next += static_cast<std::uint64_t>(tensor.elements) * sizeof(float);
    tensor.file_offset += kLengthBytes + length;
  }
  if (next != data_bytes) {
    return Damaged(path, absl::StrCat("its tensors cover ", next, " of ", data_bytes, " bytes of data"));
  }
  return tensors;
}

absl::StatusOr<std::uint32_t> FileCrc32c(const Storage& storage, const std::string& path, std::uint64_t bytes) {
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kCheckpointChunkBytes)));
  std::uint32_t crc = 0;
  for (std::uint64_t offset = 0; offset < bytes;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes - offset, chunk.size()));
    const std::span<std::byte> part = std::span(chunk).first(count);
    EK_RETURN_IF_ERROR(storage.ReadAt(path, offset, part));
    crc = Crc32c(part, crc);
    offset += count;
  }
  return crc;
}

}  // namespace evenkeel
