#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "evenkeel/checkpoint/checkpoint.h"
#include "evenkeel/core/status.h"

namespace evenkeel {

std::string PartFileName(ServerIndex server, std::uint32_t servers) {
  return absl::StrCat("part-", server.value(), "-of-", servers, ".safetensors");
}

absl::StatusOr<PartInfo> WritePart(Storage& storage, const std::string& folder, const std::string& file,
                                   const std::vector<PartArray>& arrays) {
  std::vector<SafetensorsEntry> entries;
  for (const PartArray& array : arrays) {
    for (const FlatSegment& segment : array.segments) {
      const auto size = static_cast<std::int64_t>(segment.data.size());
      if (size == 0) continue;
      entries.push_back({absl::StrCat(array.name, "/", segment.begin, "-", segment.begin + size), Shape{size}});
    }
  }
  EK_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::Create(storage, JoinPath(folder, file), entries, {}));
  for (const PartArray& array : arrays) {
    for (const FlatSegment& segment : array.segments) EK_RETURN_IF_ERROR(writer.Append(segment.data));
  }
  EK_ASSIGN_OR_RETURN(SafetensorsWriter::Sum sum, writer.Finish());
  return PartInfo{file, sum.bytes, sum.crc32c};
}

}  // namespace evenkeel
