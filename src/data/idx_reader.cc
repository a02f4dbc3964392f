#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "data/files.h"
#include "data/readers.h"
#include "evenkeel/core/status.h"

namespace evenkeel::data {
namespace {

constexpr std::uint32_t kImagesMagic = 0x803;
constexpr std::uint32_t kLabelsMagic = 0x801;

std::uint32_t BigEndian32(const char* bytes) {
  auto byte = [&](int i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])); };
  return byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
}

// A header of a magic and `rank` sizes, then one byte an element.
struct IdxFile {
  std::string bytes;
  std::vector<std::int64_t> dims;
  std::size_t header_size = 0;
};

absl::StatusOr<IdxFile> ReadIdxFile(const std::string& path, std::uint32_t magic, std::size_t rank,
                                    absl::string_view what) {
  IdxFile file;
  EK_ASSIGN_OR_RETURN(file.bytes, ReadDataFile(path));
  file.header_size = 4 + 4 * rank;
  if (file.bytes.size() >= 4 && BigEndian32(file.bytes.data()) != magic) {
    return absl::DataLossError(absl::StrFormat("[idx] %s: wrong magic 0x%08x; a file of %s begins with 0x%08x", path,
                                               BigEndian32(file.bytes.data()), what, magic));
  }
  if (file.bytes.size() < file.header_size) {
    return absl::DataLossError(absl::StrCat("[idx] ", path, ": truncated: ", file.bytes.size(),
                                            " bytes, less than the header's ", file.header_size));
  }
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    std::uint32_t dim = BigEndian32(file.bytes.data() + 4 + 4 * i);
    file.dims.push_back(dim);
    if (dim == 0 || elements > kMaxFileBytes / dim) {
      return absl::DataLossError(absl::StrCat("[idx] ", path, ": dimension ", i, " is ", dim,
                                              "; every dimension is at least 1 and all together at most ",
                                              kMaxFileBytes, " bytes"));
    }
    elements *= dim;
  }
  std::uint64_t held = file.bytes.size() - file.header_size;
  if (held != elements) {
    return absl::DataLossError(absl::StrCat("[idx] ", path, ": ", held < elements ? "truncated: " : "too long: ", held,
                                            " bytes after the header, which announces ", file.dims[0], " ", what,
                                            " in ", elements, " bytes"));
  }
  return file;
}

}  // namespace

absl::StatusOr<Samples> ReadIdx(const std::string& images_path, const std::string& labels_path) {
  EK_ASSIGN_OR_RETURN(IdxFile images, ReadIdxFile(images_path, kImagesMagic, 3, "images"));
  EK_ASSIGN_OR_RETURN(IdxFile labels, ReadIdxFile(labels_path, kLabelsMagic, 1, "labels"));
  if (images.dims[0] != labels.dims[0]) {
    return absl::InvalidArgumentError(absl::StrCat("[idx] ", images_path, " holds ", images.dims[0], " images and ",
                                                   labels_path, " ", labels.dims[0], " labels; they must be as many"));
  }
  Samples samples;
  samples.format = "idx";
  samples.files = {labels_path};
  samples.content = Content::kBytes;
  samples.spec.features = {images.dims[1], images.dims[2], 1};
  samples.spec.image = true;
  images.bytes.erase(
      0, images.header_size);  // in place: fresh memory of that size takes longer than all that is done to it
  samples.bytes = std::move(images.bytes);
  std::int64_t count = images.dims[0];
  samples.labels.reserve(static_cast<std::size_t>(count));
  samples.places.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    samples.labels.push_back(
        static_cast<unsigned char>(labels.bytes[labels.header_size + static_cast<std::size_t>(i)]));
    samples.places.push_back({0, i});
  }
  return samples;
}

}  // namespace evenkeel::data
