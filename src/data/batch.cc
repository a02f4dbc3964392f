#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/random.h"
#include "evenkeel/core/status.h"
#include "evenkeel/data/dataset.h"

namespace evenkeel {
namespace {

void Clear(Epoch epoch, std::int64_t size, const ExampleSpec& spec, Batch& batch) {
  batch.epoch = epoch;
  batch.samples.clear();
  batch.features.clear();
  batch.row_offsets.clear();
  batch.columns.clear();
  batch.values.clear();
  batch.labels.clear();
  auto count = static_cast<std::size_t>(size);
  batch.samples.reserve(count);
  batch.labels.reserve(count * static_cast<std::size_t>(spec.label_width));
  if (spec.sparse) {
    batch.row_offsets.reserve(count + 1);
    batch.row_offsets.push_back(0);
  } else {
    batch.features.reserve(count * static_cast<std::size_t>(spec.features.elements()));
  }
}

// Appends and checks what came, so that a custom set's mistake is found here and not as nonsense in a layer.
absl::Status AppendChecked(const Dataset& dataset, std::int64_t sample, Batch& batch) {
  const ExampleSpec& spec = dataset.spec();
  EK_RETURN_IF_ERROR(dataset.Append(sample, batch));
  batch.samples.push_back(sample);
  std::int64_t count = batch.size();
  auto labels = static_cast<std::int64_t>(batch.labels.size());
  auto features = static_cast<std::int64_t>(batch.features.size());
  if (labels != count * spec.label_width || (!spec.sparse && features != count * spec.features.elements())) {
    return absl::InternalError(absl::StrCat("[data] sample ", sample, " appended other than ", spec.features.ToString(),
                                            " features and ", spec.label_width, " labels"));
  }
  auto offsets = static_cast<std::int64_t>(batch.row_offsets.size());
  if (spec.sparse && (offsets != count + 1 || batch.columns.size() != batch.values.size() ||
                      batch.row_offsets.back() != static_cast<std::int64_t>(batch.columns.size()))) {
    return absl::InternalError(absl::StrCat("[data] sample ", sample, " appended other than one sparse row"));
  }
  if (spec.classes > 0) {
    float label = batch.labels.back();
    if (!(label >= 0 && label < static_cast<float>(spec.classes) && label == std::floor(label))) {
      return absl::InvalidArgumentError(absl::StrCat("[data] sample ", sample, ": label ", label,
                                                     " is out of range; labels are whole numbers from 0 to ",
                                                     spec.classes - 1));
    }
  }
  return absl::OkStatus();
}

struct ImageSize {
  std::int64_t height, width, channels;
};

// A window of the image's own size on the image with `padding` pixels of `fill` around it; (0, 0) is the padded
// image's corner.
void Crop(ImageSize size, std::int64_t padding, std::int64_t top, std::int64_t left, std::span<const float> fill,
          const float* in, float* out) {
  for (std::int64_t y = 0; y < size.height; ++y) {
    std::int64_t from_y = y + top - padding;
    for (std::int64_t x = 0; x < size.width;) {
      std::int64_t from_x = x + left - padding;
      float* pixel = out + (y * size.width + x) * size.channels;
      if (from_y >= 0 && from_y < size.height && from_x >= 0 && from_x < size.width) {
        std::int64_t run = std::min(size.width - from_x, size.width - x);
        std::copy_n(in + (from_y * size.width + from_x) * size.channels, run * size.channels, pixel);
        x += run;
        continue;
      }
      for (std::int64_t c = 0; c < size.channels; ++c) pixel[c] = fill.empty() ? 0 : fill[static_cast<std::size_t>(c)];
      ++x;
    }
  }
}

void FlipHorizontally(ImageSize size, float* image) {
  for (std::int64_t y = 0; y < size.height; ++y) {
    float* row = image + y * size.width * size.channels;
    for (std::int64_t a = 0, b = size.width - 1; a < b; ++a, --b) {
      std::swap_ranges(row + a * size.channels, row + (a + 1) * size.channels, row + b * size.channels);
    }
  }
}

bool IsActive(const AugmentOptions& options) { return options.flip_horizontal || options.crop_padding > 0; }

// Augments images in place; the draws depend on (seed, epoch, sample) alone. Requires images when active.
class Augmenter {
 public:
  Augmenter(const Dataset& dataset, const AugmentOptions& options, Epoch epoch)
      : dataset_(dataset), options_(options), key_(MixKey(HashName("augment"), options.seed, epoch.value())) {
    if (!active()) return;
    const Shape& shape = dataset.spec().features;
    size_ = {shape[0], shape[1], shape[2]};
    scratch_.resize(options.crop_padding > 0 ? static_cast<std::size_t>(shape.elements()) : 0);
  }
  bool active() const { return IsActive(options_); }

  void Apply(std::int64_t sample, float* image) {
    auto draws = Philox(key_, 0, static_cast<std::uint64_t>(sample));
    std::int64_t padding = options_.crop_padding;
    std::int64_t top = Below(draws[0], 2 * padding + 1);
    std::int64_t left = Below(draws[1], 2 * padding + 1);
    if (padding > 0 && (top != padding || left != padding)) {
      std::copy_n(image, scratch_.size(), scratch_.data());
      Crop(size_, padding, top, left, dataset_.padding(), scratch_.data(), image);
    }
    if (options_.flip_horizontal && (draws[2] >> 31) != 0) FlipHorizontally(size_, image);
  }

 private:
  // Uniform up to bound / 2^32.
  static std::int64_t Below(std::uint32_t draw, std::int64_t bound) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(draw) * static_cast<std::uint64_t>(bound) >> 32);
  }

  const Dataset& dataset_;
  const AugmentOptions options_;
  const std::uint64_t key_;
  ImageSize size_{};
  std::vector<float> scratch_;  // one image
};

}  // namespace

absl::Status AssembleBatch(const Dataset& dataset, const AugmentOptions& augment, Epoch epoch,
                           const RangeList& positions, Batch& batch) {
  const ExampleSpec& spec = dataset.spec();
  if (IsActive(augment) && (!spec.image || spec.sparse || spec.features.rank() != 3)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[data] flip_horizontal and crop_padding need images [height, width, "
                     "channels]; these samples are ",
                     spec.features.ToString()));
  }
  Clear(epoch, TotalSize(positions), spec, batch);
  if (positions.empty()) return absl::OkStatus();
  Augmenter augmenter(dataset, augment, epoch);
  for (const PositionRange& range : positions) {
    if (range.begin < 0 || range.end > dataset.size() || range.begin > range.end) {
      return absl::OutOfRangeError(
          absl::StrCat("[data] positions ", ToString(positions), " of an epoch of ", dataset.size(), " samples"));
    }
  }
  EpochPermutation permutation(dataset.size(), augment.seed, epoch);
  for (const PositionRange& range : positions) {
    for (std::int64_t position = range.begin; position < range.end; ++position) {
      std::size_t begin = batch.features.size();
      std::int64_t sample = permutation(position);
      EK_RETURN_IF_ERROR(AppendChecked(dataset, sample, batch));
      if (augmenter.active()) augmenter.Apply(sample, batch.features.data() + begin);
    }
  }
  return absl::OkStatus();
}

void MixRowKeys(const Batch& batch, std::uint64_t seed, std::vector<std::uint64_t>& keys) {
  keys.clear();
  for (std::int64_t sample : batch.samples) {
    keys.push_back(MixKey(seed, batch.epoch.value(), static_cast<std::uint64_t>(sample)));
  }
}

absl::Status AssembleRange(const Dataset& dataset, std::int64_t begin, std::int64_t end, Batch& batch) {
  if (begin < 0 || end < begin || end > dataset.size()) {
    return absl::OutOfRangeError(
        absl::StrCat("[data] samples [", begin, ",", end, ") of a set of ", dataset.size(), " samples"));
  }
  Clear(Epoch(), end - begin, dataset.spec(), batch);
  for (std::int64_t sample = begin; sample < end; ++sample) {
    EK_RETURN_IF_ERROR(AppendChecked(dataset, sample, batch));
  }
  return absl::OkStatus();
}

}  // namespace evenkeel
