#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "data/files.h"
#include "data/readers.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"
#include "tf_example.pb.h"

namespace evenkeel::data {
namespace {

constexpr absl::string_view kFormat = "tfrecord";

std::uint32_t MaskedCrcOf(absl::string_view bytes) {
  return MaskedCrc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// Steps through a file's records: u64 length, u32 masked CRC of the length, data, u32 masked CRC of the data; all
// little-endian.
class RecordReader {
 public:
  RecordReader(absl::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  // False at the end of the file.
  absl::StatusOr<bool> Next(absl::string_view* record) {
    if (at_ == bytes_.size()) return false;
    if (bytes_.size() - at_ < kHeader) return Broken("truncated in a record's length");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data() + at_, sizeof(length));
    if (MaskedCrcOf(bytes_.substr(at_, sizeof(length))) != Word(at_ + sizeof(length))) {
      return Broken("the length's checksum is wrong");
    }
    at_ += kHeader;
    if (length > bytes_.size() - at_ || bytes_.size() - at_ - length < kFooter) {
      return Broken(
          absl::StrCat("truncated: the record has ", length, " bytes, the file only ", bytes_.size() - at_, " more"));
    }
    *record = bytes_.substr(at_, length);
    at_ += length;
    if (MaskedCrcOf(*record) != Word(at_)) return Broken("the data's checksum is wrong");
    at_ += kFooter;
    ++count_;
    return true;
  }
  std::int64_t count() const { return count_; }

 private:
  static constexpr std::size_t kHeader = 12;
  static constexpr std::size_t kFooter = 4;

  std::uint32_t Word(std::size_t offset) const {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes_.data() + offset, sizeof(word));
    return word;
  }
  absl::Status Broken(absl::string_view message) const {
    return absl::DataLossError(absl::StrCat(WhereIn(kFormat, path_, "record", count_), ": ", message));
  }

  absl::string_view bytes_;
  const std::string& path_;
  std::size_t at_ = 0;
  std::int64_t count_ = 0;
};

// Moves one Example's feature and label onto the samples.
class ExampleDecoder {
 public:
  ExampleDecoder(const TfRecordSource& source, Samples& samples) : source_(source), samples_(samples) {
    elements_ = samples.spec.features.elements();
  }

  absl::Status Decode(absl::string_view record, std::string where) {
    where_ = std::move(where);
    if (record.size() > std::numeric_limits<int>::max() ||
        !example_.ParseFromArray(record.data(), static_cast<int>(record.size()))) {
      return absl::DataLossError(absl::StrCat(where_, ": ", record.size(), " bytes that are no tf.Example"));
    }
    EK_ASSIGN_OR_RETURN(const tf_example::Feature* feature, Find(source_.feature));
    EK_RETURN_IF_ERROR(DecodeFeature(*feature));
    EK_ASSIGN_OR_RETURN(const tf_example::Feature* label, Find(source_.label));
    return DecodeLabel(*label);
  }

 private:
  absl::Status Wrong(absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, ": ", message));
  }

  absl::StatusOr<const tf_example::Feature*> Find(const std::string& name) const {
    const auto& features = example_.features().feature();
    auto found = features.find(name);
    if (found != features.end()) return &found->second;
    std::vector<std::string> names;
    for (const auto& [other, feature] : features) names.push_back(other);
    std::sort(names.begin(), names.end());
    if (names.size() > 20) names.resize(20);
    return Wrong(absl::StrCat("no feature '", name, "'; there are: ", absl::StrJoin(names, ", ")));
  }

  absl::Status CheckCount(std::int64_t count, absl::string_view what) const {
    if (count == elements_) return absl::OkStatus();
    return Wrong(absl::StrCat("feature '", source_.feature, "' has ", count, " ", what, ", the shape ",
                              samples_.spec.features.ToString(), " has ", elements_));
  }

  absl::Status DecodeFeature(const tf_example::Feature& feature) {
    bool bytes = feature.kind_case() == tf_example::Feature::kBytesList;
    if (samples_.size() == 0) samples_.content = bytes ? Content::kBytes : Content::kDense;
    if (bytes != (samples_.content == Content::kBytes)) {
      return Wrong(absl::StrCat("feature '", source_.feature, "' is a list of ", bytes ? "bytes" : "numbers",
                                ", unlike in the records before"));
    }
    switch (feature.kind_case()) {
      case tf_example::Feature::kBytesList: {
        if (feature.bytes_list().value_size() != 1) {
          return Wrong(absl::StrCat("feature '", source_.feature, "' has ", feature.bytes_list().value_size(),
                                    " byte strings; right is one, of raw bytes"));
        }
        const std::string& raw = feature.bytes_list().value(0);
        EK_RETURN_IF_ERROR(CheckCount(static_cast<std::int64_t>(raw.size()), "bytes"));
        samples_.bytes.insert(samples_.bytes.end(), raw.begin(), raw.end());
        return absl::OkStatus();
      }
      case tf_example::Feature::kFloatList:
        EK_RETURN_IF_ERROR(CheckCount(feature.float_list().value_size(), "floats"));
        for (float value : feature.float_list().value()) {
          if (!std::isfinite(value)) {
            return Wrong(absl::StrCat("feature '", source_.feature, "' holds ", value, "; values must be finite"));
          }
          samples_.values.push_back(value);
        }
        return absl::OkStatus();
      case tf_example::Feature::kInt64List:
        EK_RETURN_IF_ERROR(CheckCount(feature.int64_list().value_size(), "integers"));
        for (std::int64_t value : feature.int64_list().value()) samples_.values.push_back(static_cast<float>(value));
        return absl::OkStatus();
      default:
        return Wrong(absl::StrCat("feature '", source_.feature, "' is empty"));
    }
  }

  absl::Status DecodeLabel(const tf_example::Feature& label) {
    std::int64_t width = 0;
    if (label.kind_case() == tf_example::Feature::kInt64List) {
      width = label.int64_list().value_size();
      for (std::int64_t value : label.int64_list().value()) samples_.labels.push_back(static_cast<double>(value));
    } else if (label.kind_case() == tf_example::Feature::kFloatList) {
      width = label.float_list().value_size();
      for (float value : label.float_list().value()) {
        if (!std::isfinite(value)) return Wrong(absl::StrCat("label ", value, " is not finite"));
        samples_.labels.push_back(value);
      }
    } else {
      return Wrong(absl::StrCat("label '", source_.label, "' is no list of integers or floats"));
    }
    if (samples_.size() == 0) samples_.spec.label_width = width;
    if (width == 0 || width != samples_.spec.label_width) {
      return Wrong(absl::StrCat("label '", source_.label, "' has ", width, " values; right is ",
                                width == 0 ? 1 : samples_.spec.label_width, ", as in every record"));
    }
    return absl::OkStatus();
  }

  const TfRecordSource& source_;
  Samples& samples_;
  std::int64_t elements_;
  std::string where_;
  tf_example::Example example_;
};

}  // namespace

absl::StatusOr<Samples> ReadTfRecord(const TfRecordSource& source, const std::vector<std::string>& paths) {
  Samples samples;
  samples.format = std::string(kFormat);
  samples.files = paths;
  samples.spec.features = Shape(source.shape);
  samples.spec.image = samples.spec.features.rank() == 3;
  for (std::int64_t dim : source.shape) {
    if (dim < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("[tfrecord] shape ", samples.spec.features.ToString(), ": every dimension must be at least 1"));
    }
  }
  if (source.shape.empty()) {
    return absl::InvalidArgumentError("[tfrecord] the source gives no shape; right is for example [28,28,1]");
  }
  ExampleDecoder decoder(source, samples);
  for (std::size_t f = 0; f < paths.size(); ++f) {
    EK_ASSIGN_OR_RETURN(std::string file, ReadDataFile(paths[f]));
    RecordReader reader(file, paths[f]);
    for (absl::string_view record;;) {
      EK_ASSIGN_OR_RETURN(bool more, reader.Next(&record));
      if (!more) break;
      std::int64_t number = reader.count() - 1;
      EK_RETURN_IF_ERROR(decoder.Decode(record, WhereIn(kFormat, paths[f], "record", number)));
      samples.places.push_back({static_cast<std::int32_t>(f), number});
    }
    if (reader.count() == 0) {
      return absl::DataLossError(absl::StrCat("[tfrecord] ", paths[f], ": no records; it must hold at least one"));
    }
  }
  return samples;
}

}  // namespace evenkeel::data
