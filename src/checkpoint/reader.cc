#include <algorithm>
#include <charconv>
#include <map>

#include "absl/strings/str_cat.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr char kParameters[] = "parameters";
constexpr char kSlotPrefix[] = "slot.";

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat("[open checkpoint] ", path, ": ", what));
}

// Elements [begin, end) of an array, in one part.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t part = 0;
  std::uint64_t file_offset = 0;
};
using Pieces = std::vector<Piece>;  // ascending once checked

// "slot.m/128-256"; begin and end from the name, to be compared with the shape.
bool ParsePieceName(std::string_view name, std::string& array, Piece& piece) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return false;
  array = std::string(name.substr(0, slash));
  const char* end = name.data() + name.size();
  auto first = std::from_chars(name.data() + slash + 1, end, piece.begin);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return false;
  auto second = std::from_chars(first.ptr + 1, end, piece.end);
  return second.ec == std::errc() && second.ptr == end && piece.begin >= 0 && piece.begin < piece.end;
}

absl::Status CheckPart(const Storage& storage, const std::string& path, const PartInfo& part) {
  absl::StatusOr<std::uint64_t> size = storage.Size(path);
  if (absl::IsNotFound(size.status())) return Damaged(path, "the manifest lists it, but it is missing");
  if (!size.ok()) return size.status();
  if (*size != part.bytes) return Damaged(path, absl::StrCat(*size, " bytes, the manifest says ", part.bytes));
  EK_ASSIGN_OR_RETURN(std::uint32_t crc, FileCrc32c(storage, path, part.bytes));
  if (crc != part.crc32c) {
    return Damaged(path, absl::StrCat("its CRC-32C is ", crc, ", the manifest says ", part.crc32c,
                                      "; it was changed after it was written"));
  }
  return absl::OkStatus();
}

// The pieces cover [0, floats) exactly once; sorts them.
absl::Status CheckCover(const std::string& folder, const std::string& array, std::int64_t floats, Pieces& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::int64_t next = 0;
  for (const Piece& piece : pieces) {
    if (piece.begin != next) {
      return Damaged(folder, absl::StrCat("of array ", array, " elements ", std::min(next, piece.begin), " to ",
                                          std::max(next, piece.begin), " are ",
                                          piece.begin > next ? "in no part" : "in two parts"));
    }
    next = piece.end;
  }
  if (next != floats) {
    return Damaged(folder, absl::StrCat("the parts of array ", array, " end at ", next, ", not at ", floats));
  }
  return absl::OkStatus();
}

}  // namespace

struct CheckpointReader::State {
  const Storage* storage;
  std::string folder;
  Manifest manifest;
  std::vector<std::string> part_paths;
  std::map<std::string, Pieces, std::less<>> arrays;
  std::map<std::string, FlatPlace, std::less<>> tensors;

  absl::Status AddPart(std::size_t part);
  absl::StatusOr<std::int64_t> ArrayFloats(const std::string& array, const std::string& path) const;
};

absl::StatusOr<std::int64_t> CheckpointReader::State::ArrayFloats(const std::string& array,
                                                                  const std::string& path) const {
  if (array == kParameters) return manifest.total_floats;
  if (array.starts_with(kSlotPrefix)) return manifest.parameter_floats;
  return Damaged(path, absl::StrCat("array \"", array.substr(0, 200), "\" is neither parameters nor slot.NAME"));
}

absl::Status CheckpointReader::State::AddPart(std::size_t part) {
  const std::string& path = part_paths[part];
  EK_RETURN_IF_ERROR(CheckPart(*storage, path, manifest.parts[part]));
  EK_ASSIGN_OR_RETURN(std::vector<StoredTensor> stored, ReadSafetensorsHeader(*storage, path));
  for (const StoredTensor& tensor : stored) {
    std::string array;
    Piece piece;
    if (!ParsePieceName(tensor.name, array, piece)) {
      return Damaged(path, absl::StrCat("tensor \"", tensor.name.substr(0, 200), "\" is no name like ARRAY/BEGIN-END"));
    }
    EK_ASSIGN_OR_RETURN(std::int64_t floats, ArrayFloats(array, path));
    if (tensor.elements != piece.end - piece.begin || piece.end > floats) {
      return Damaged(path, absl::StrCat("tensor \"", tensor.name, "\" has ", tensor.elements,
                                        " elements; its array has ", floats));
    }
    piece.part = part;
    piece.file_offset = tensor.file_offset;
    arrays[array].push_back(piece);
  }
  return absl::OkStatus();
}

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const Storage& storage, const std::string& model_dir,
                                                        Version version) {
  auto state = std::make_unique<State>();
  state->storage = &storage;
  state->folder = CheckpointFolder(model_dir, version);
  EK_ASSIGN_OR_RETURN(state->manifest, ReadManifest(storage, model_dir, version));
  const Manifest& manifest = state->manifest;
  for (const PartInfo& part : manifest.parts) state->part_paths.push_back(JoinPath(state->folder, part.file));
  state->arrays[kParameters];  // there is one, also when no part holds any of it
  for (std::size_t part = 0; part < manifest.parts.size(); ++part) EK_RETURN_IF_ERROR(state->AddPart(part));
  for (auto& [array, pieces] : state->arrays) {
    EK_ASSIGN_OR_RETURN(std::int64_t floats, state->ArrayFloats(array, state->folder));
    EK_RETURN_IF_ERROR(CheckCover(state->folder, array, floats, pieces));
  }
  EK_ASSIGN_OR_RETURN(std::vector<FlatPlace> places, PlaceTensors(manifest));
  for (std::size_t i = 0; i < places.size(); ++i) state->tensors[manifest.tensors[i].name] = places[i];
  return CheckpointReader(std::move(state));
}

const Manifest& CheckpointReader::manifest() const { return state_->manifest; }

absl::Status CheckpointReader::Read(std::string_view array, std::int64_t begin, std::span<float> out) const {
  auto found = state_->arrays.find(array);
  if (found == state_->arrays.end()) {
    return absl::NotFoundError(
        absl::StrCat("[read checkpoint] ", state_->folder, ": no array \"", std::string(array), "\""));
  }
  const Pieces& pieces = found->second;
  const std::int64_t floats = pieces.empty() ? 0 : pieces.back().end;
  const auto size = static_cast<std::int64_t>(out.size());
  if (begin < 0 || begin > floats || size > floats - begin) {
    return absl::OutOfRangeError(absl::StrCat("[read checkpoint] ", state_->folder, ": ", size, " elements from ",
                                              begin, " of array ", std::string(array), ", which has ", floats));
  }
  auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.end <= begin; });
  for (std::int64_t done = 0; done < size; ++piece) {
    const std::int64_t at = begin + done;
    const std::int64_t count = std::min(size - done, piece->end - at);
    const std::uint64_t offset = piece->file_offset + static_cast<std::uint64_t>(at - piece->begin) * sizeof(float);
    EK_RETURN_IF_ERROR(state_->storage->ReadAt(
        state_->part_paths[piece->part], offset,
        std::as_writable_bytes(out.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)))));
    done += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> CheckpointReader::ReadTensor(std::string_view name) const {
  auto place = state_->tensors.find(name);
  if (place == state_->tensors.end()) {
    return absl::NotFoundError(
        absl::StrCat("[read checkpoint] ", state_->folder, ": no tensor \"", std::string(name), "\""));
  }
  std::vector<float> values(static_cast<std::size_t>(place->second.elements));
  EK_RETURN_IF_ERROR(Read(kParameters, place->second.begin, values));
  return values;
}

absl::StatusOr<std::string> ParametersSha256(const CheckpointReader& reader) {
  Sha256 digest;
  std::vector<float> chunk(kCheckpointChunkBytes / sizeof(float));
  const std::int64_t floats = reader.manifest().total_floats;
  for (std::int64_t begin = 0; begin < floats;) {
    const std::int64_t count = std::min<std::int64_t>(floats - begin, static_cast<std::int64_t>(chunk.size()));
    const std::span<float> values = std::span(chunk).first(static_cast<std::size_t>(count));
    EK_RETURN_IF_ERROR(reader.Read(kParameters, begin, values));
    digest.Update(std::as_bytes(values));
    begin += count;
  }
  return digest.HexDigest();
}

}  // namespace evenkeel
