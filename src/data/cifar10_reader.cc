#include "absl/strings/str_cat.h"
#include "data/files.h"
#include "data/readers.h"
#include "evenkeel/core/status.h"

namespace evenkeel::data {
namespace {

constexpr std::size_t kSide = 32;
constexpr std::size_t kPlane = kSide * kSide;
constexpr std::size_t kChannels = 3;
constexpr std::size_t kRecord = 1 + kChannels * kPlane;

}  // namespace

absl::StatusOr<Samples> ReadCifar10(const std::vector<std::string>& paths) {
  Samples samples;
  samples.format = "cifar10";
  samples.files = paths;
  samples.content = Content::kBytes;
  samples.spec.features = {kSide, kSide, kChannels};
  samples.spec.image = true;
  for (std::size_t f = 0; f < paths.size(); ++f) {
    EK_ASSIGN_OR_RETURN(std::string file, ReadDataFile(paths[f]));
    std::size_t records = file.size() / kRecord;
    if (records == 0 || file.size() % kRecord != 0) {
      return absl::DataLossError(absl::StrCat("[cifar10] ", paths[f], ": truncated: ", file.size(), " bytes are ",
                                              records, " records of ", kRecord, " bytes and ", file.size() % kRecord,
                                              " bytes of another"));
    }
    std::size_t base = samples.bytes.size();
    samples.bytes.resize(base + records * kChannels * kPlane);
    auto* out = reinterpret_cast<std::uint8_t*>(samples.bytes.data()) + base;
    for (std::size_t r = 0; r < records; ++r) {
      const auto* record = reinterpret_cast<const unsigned char*>(file.data()) + r * kRecord;
      samples.labels.push_back(record[0]);
      samples.places.push_back({static_cast<std::int32_t>(f), static_cast<std::int64_t>(r)});
      for (std::size_t p = 0; p < kPlane; ++p) {
        for (std::size_t c = 0; c < kChannels; ++c) *out++ = record[1 + c * kPlane + p];
      }
    }
  }
  return samples;
}

}  // namespace evenkeel::data
