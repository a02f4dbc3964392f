#include "data/memory_dataset.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"

namespace evenkeel::data {
namespace {

// Labels and bounds, alike for all kinds.
class MemoryDataset : public Dataset {
 public:
  explicit MemoryDataset(const Samples& samples)
      : spec_(samples.spec),
        size_(samples.size()),
        origin_(absl::StrCat("[", samples.format, "] ", samples.files.empty() ? "" : samples.files[0])),
        labels_(samples.labels.begin(), samples.labels.end()) {}

  const ExampleSpec& spec() const override { return spec_; }
  std::int64_t size() const override { return size_; }
  absl::Status Append(std::int64_t index, Batch& batch) const override {
    if (index < 0 || index >= size_) {
      return absl::OutOfRangeError(absl::StrCat(origin_, ": sample ", index, " of ", size_));
    }
    AppendFeatures(index, batch);
    auto label = labels_.begin() + index * spec_.label_width;
    batch.labels.insert(batch.labels.end(), label, label + spec_.label_width);
    return absl::OkStatus();
  }

 protected:
  virtual void AppendFeatures(std::int64_t index, Batch& batch) const = 0;

 private:
  const ExampleSpec spec_;
  const std::int64_t size_;
  const std::string origin_;
  const std::vector<float> labels_;
};

// Bytes, normalised by one table of 256 floats a channel, or by one for all.
class ByteDataset final : public MemoryDataset {
 public:
  ByteDataset(Samples samples, const Statistics& statistics)
      : MemoryDataset(samples), elements_(samples.spec.features.elements()), bytes_(std::move(samples.bytes)) {
    tables_.resize(std::max<std::size_t>(statistics.mean.size(), 1));
    for (std::size_t group = 0; group < tables_.size(); ++group) {
      for (int byte = 0; byte < 256; ++byte) {
        double value = byte;
        if (statistics.normalize == "scale") value /= 255;
        if (statistics.normalize == "standardize") value = (value - statistics.mean[group]) / statistics.std[group];
        tables_[group][static_cast<std::size_t>(byte)] = static_cast<float>(value);
      }
    }
    std::int64_t channels = spec().image ? spec().features[-1] : 0;
    for (std::int64_t c = 0; c < channels; ++c) padding_.push_back(tables_[tables_.size() > 1 ? c : 0][0]);
  }

  std::span<const float> padding() const override { return padding_; }

 protected:
  void AppendFeatures(std::int64_t index, Batch& batch) const override {
    std::size_t begin = batch.features.size();
    batch.features.resize(begin + static_cast<std::size_t>(elements_));
    float* out = batch.features.data() + begin;
    const auto* in = reinterpret_cast<const std::uint8_t*>(bytes_.data()) + index * elements_;
    if (tables_.size() == 1) {
      const float* table = tables_[0].data();
      for (std::int64_t i = 0; i < elements_; ++i) out[i] = table[in[i]];
    } else if (tables_.size() == 3) {
      const float *red = tables_[0].data(), *green = tables_[1].data(), *blue = tables_[2].data();
      for (std::int64_t i = 0; i < elements_; i += 3) {
        out[i] = red[in[i]];
        out[i + 1] = green[in[i + 1]];
        out[i + 2] = blue[in[i + 2]];
      }
    } else {
      for (std::int64_t i = 0; i < elements_;) {
        for (const auto& table : tables_) {
          out[i] = table[in[i]];
          ++i;
        }
      }
    }
  }

 private:
  const std::int64_t elements_;
  const std::string bytes_;
  std::vector<std::array<float, 256>> tables_;
  std::vector<float> padding_;
};

class DenseDataset final : public MemoryDataset {
 public:
  DenseDataset(Samples samples, std::vector<float> padding)
      : MemoryDataset(samples),
        elements_(samples.spec.features.elements()),
        values_(std::move(samples.values)),
        padding_(std::move(padding)) {}

  std::span<const float> padding() const override { return padding_; }

 protected:
  void AppendFeatures(std::int64_t index, Batch& batch) const override {
    auto row = values_.begin() + index * elements_;
    batch.features.insert(batch.features.end(), row, row + elements_);
  }

 private:
  const std::int64_t elements_;
  const std::vector<float> values_;
  const std::vector<float> padding_;
};

class SparseDataset final : public MemoryDataset {
 public:
  explicit SparseDataset(Samples samples)
      : MemoryDataset(samples),
        row_offsets_(std::move(samples.row_offsets)),
        columns_(std::move(samples.columns)),
        values_(std::move(samples.values)) {}

 protected:
  void AppendFeatures(std::int64_t index, Batch& batch) const override {
    std::int64_t begin = row_offsets_[static_cast<std::size_t>(index)];
    std::int64_t end = row_offsets_[static_cast<std::size_t>(index) + 1];
    if (batch.row_offsets.empty()) batch.row_offsets.push_back(0);
    batch.columns.insert(batch.columns.end(), columns_.begin() + begin, columns_.begin() + end);
    batch.values.insert(batch.values.end(), values_.begin() + begin, values_.begin() + end);
    batch.row_offsets.push_back(static_cast<std::int64_t>(batch.columns.size()));
  }

 private:
  const std::vector<std::int64_t> row_offsets_;
  const std::vector<std::int32_t> columns_;
  const std::vector<float> values_;
};

class SubsetDataset final : public Dataset {
 public:
  SubsetDataset(std::unique_ptr<Dataset> whole, std::vector<std::int64_t> rows)
      : whole_(std::move(whole)), rows_(std::move(rows)) {}
  const ExampleSpec& spec() const override { return whole_->spec(); }
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  absl::Status Append(std::int64_t index, Batch& batch) const override {
    if (index < 0 || index >= size()) {
      return absl::OutOfRangeError(absl::StrCat("[data] sample ", index, " of ", size()));
    }
    return whole_->Append(rows_[static_cast<std::size_t>(index)], batch);
  }
  std::span<const float> padding() const override { return whole_->padding(); }

 private:
  const std::unique_ptr<Dataset> whole_;
  const std::vector<std::int64_t> rows_;
};

template <class Elements>
void Hash(Sha256& digest, const Elements& elements) {
  std::uint64_t count = elements.size();
  digest.Update(std::as_bytes(std::span(&count, 1)));
  digest.Update(std::as_bytes(std::span(elements)));
}

void HashShape(Sha256& digest, const Dataset& dataset) {
  const ExampleSpec& spec = dataset.spec();
  digest.Update(AsBytes(absl::StrCat(spec.features.ToString(), ";", spec.image, ";", spec.sparse, ";", spec.label_width,
                                     ";", spec.classes, ";", dataset.size(), ";")));
}

}  // namespace

std::unique_ptr<Dataset> MakeDataset(Samples samples, const Statistics& statistics) {
  if (samples.content == Content::kSparse) return std::make_unique<SparseDataset>(std::move(samples));
  bool table_of_bytes = statistics.normalize != "standardize" || samples.spec.image;
  if (samples.content == Content::kBytes && table_of_bytes) {
    return std::make_unique<ByteDataset>(std::move(samples), statistics);
  }
  if (samples.content == Content::kBytes) {
    samples.values.assign(samples.Bytes().begin(), samples.Bytes().end());
    samples.bytes = {};
    samples.content = Content::kDense;
  }
  std::vector<float> padding;
  if (statistics.normalize == "standardize") {
    std::size_t groups = statistics.mean.size();
    for (std::size_t i = 0; i < samples.values.size(); i += groups) {
      for (std::size_t g = 0; g < groups; ++g) {
        float& value = samples.values[i + g];
        value = static_cast<float>((value - statistics.mean[g]) / statistics.std[g]);
      }
    }
    for (std::size_t g = 0; samples.spec.image && g < groups; ++g) {
      padding.push_back(static_cast<float>(-statistics.mean[g] / statistics.std[g]));
    }
  }
  return std::make_unique<DenseDataset>(std::move(samples), std::move(padding));
}

std::string FingerprintOf(const Samples& samples, const std::string& statistics_json) {
  Sha256 digest;
  digest.Update(AsBytes(absl::StrCat(samples.format, ";", samples.spec.features.ToString(), ";", samples.size(), ";",
                                     statistics_json, ";")));
  Hash(digest, samples.bytes);
  Hash(digest, samples.values);
  Hash(digest, samples.row_offsets);
  Hash(digest, samples.columns);
  Hash(digest, samples.labels);
  return digest.HexDigest().substr(0, 16);
}

std::unique_ptr<Dataset> MakeSubset(std::unique_ptr<Dataset> dataset, std::vector<std::int64_t> rows) {
  return std::make_unique<SubsetDataset>(std::move(dataset), std::move(rows));
}

absl::StatusOr<std::string> FingerprintBySampling(const Dataset& dataset) {
  constexpr std::int64_t kSamples = 1024;
  Sha256 digest;
  HashShape(digest, dataset);
  std::int64_t count = std::min(dataset.size(), kSamples);
  Batch batch;
  for (std::int64_t i = 0; i < count; ++i) {
    // The product stays below 2^63 for sets of up to 2^53 samples.
    std::int64_t index = count > 1 ? i * (dataset.size() - 1) / (count - 1) : 0;
    EK_RETURN_IF_ERROR(AssembleRange(dataset, index, index + 1, batch));
    Hash(digest, batch.features);
    Hash(digest, batch.columns);
    Hash(digest, batch.values);
    Hash(digest, batch.labels);
  }
  return digest.HexDigest().substr(0, 16);
}

}  // namespace evenkeel::data
