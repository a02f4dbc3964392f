// Training and evaluation sets: random access by sample index, and batches cut from an epoch's permutation.
//
// Threading: an opened set is immutable and shared freely; a Batch belongs to one thread at a time.
// Ownership: sets lie whole in memory (images as bytes, normalised when a batch is assembled).
// Errors:    absl::Status; each names the file, the record or line, the value and what would be right.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/ranges.h"
#include "evenkeel/core/shape.h"

namespace evenkeel {

struct ExampleSpec {
  Shape features;                // of one sample: [784], [28,28,1] (images are HWC), [features]
  bool image = false;            // flips and crops apply
  bool sparse = false;           // rows come as CSR; features is [columns]
  std::int64_t label_width = 1;  // floats a sample: 1 for a class index, a target or a binary label
  std::int64_t classes = 0;      // labels lie in [0, classes); 0: not classes
};

// Samples ready for a model. Buffers are reused from batch to batch; nothing shrinks.
struct Batch {
  Epoch epoch;
  std::vector<std::int64_t> samples;      // sample indices, in order
  std::vector<float> features;            // dense: samples.size() * features.elements()
  std::vector<std::int64_t> row_offsets;  // sparse: samples.size() + 1
  std::vector<std::int32_t> columns;
  std::vector<float> values;
  std::vector<float> labels;  // samples.size() * label_width
  std::int64_t size() const { return static_cast<std::int64_t>(samples.size()); }
  // Of the samples that are in it.
  std::int64_t bytes() const {
    const std::size_t numbers = samples.size() + row_offsets.size();
    return static_cast<std::int64_t>(numbers * sizeof(std::int64_t) + columns.size() * sizeof(std::int32_t) +
                                     (features.size() + values.size() + labels.size()) * sizeof(float));
  }
};

// A source's raw samples, decoded and validated. Immutable once opened; thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const ExampleSpec& spec() const = 0;
  virtual std::int64_t size() const = 0;
  // Appends sample `index`, normalised, to the batch's buffers: features (dense) or columns, values and the next row
  // offset (sparse), and labels. `batch.samples` is the caller's. Errors: kDataLoss, kOutOfRange name file and index.
  virtual absl::Status Append(std::int64_t index, Batch& batch) const = 0;
  // What a zero pixel of the source is after normalisation, one value a channel: fills the padding of random crops, so
  // that cropping and then normalising gives the same picture. Empty: 0.
  virtual std::span<const float> padding() const { return {}; }
};

struct OpenedData {
  std::unique_ptr<Dataset> dataset;
  // Normalisation and categories, computed over the training set: JSON, stored in the checkpoint.
  std::string statistics_json;
  // Differs when the samples, their order or their normalisation differ: 16 hex digits.
  std::string fingerprint;
};

// Opens input.train (less the eval split). Paths are expanded with `data_folder` (EVENKEEL_DATA's fallback).
// Errors: kNotFound says where the set is to be had; kInvalidArgument and kDataLoss name the file, the record or line,
// the value and what would be right.
absl::StatusOr<OpenedData> OpenTrainingData(const InputConfig& input, std::string_view data_folder);
// Opens input.eval, or the eval split of input.train, normalised by the training set's `statistics_json`.
// kNotFound (with a word) when the experiment has no evaluation data.
absl::StatusOr<OpenedData> OpenEvalData(const InputConfig& input, std::string_view data_folder,
                                        std::string_view statistics_json);

// Labels back in the data's own units (label_normalize): value * scale + offset.
struct LabelScale {
  float scale = 1;
  float offset = 0;
};
absl::StatusOr<LabelScale> LabelScaleFrom(std::string_view statistics_json);

// Factories for sources of type custom, which normalise and validate by themselves (input.normalize must be none).
// Register before OpenTrainingData; not thread-safe.
using DatasetFactory = std::function<absl::StatusOr<std::unique_ptr<Dataset>>(const Attributes&, bool training,
                                                                              std::string_view data_folder)>;
void RegisterDataset(const std::string& type, DatasetFactory factory);

// The order of samples in an epoch: a keyed permutation of [0, n), computed position by position.
// (Feistel network with cycle walking, Black & Rogaway 2002, sec. 4.)
class EpochPermutation {
 public:
  // Requires n >= 1.
  EpochPermutation(std::int64_t n, std::uint64_t seed, Epoch epoch);
  std::int64_t operator()(std::int64_t position) const;

 private:
  std::int64_t n_;
  int half_bits_;
  std::uint64_t key_;
};

struct AugmentOptions {
  std::uint64_t seed = 0;
  bool flip_horizontal = false;
  std::int64_t crop_padding = 0;  // pixels
};

// Fills `batch` with the samples at `positions` of the epoch's permutation (keyed by augment.seed), augmented by
// (seed, epoch, sample): first the crop of the padded image, then the flip, each offset equally likely.
// Thread-safe for distinct batches. Errors: kOutOfRange for a position outside [0, size); kInvalidArgument when flip or
// crop are asked of samples that are not images.
absl::Status AssembleBatch(const Dataset& dataset, const AugmentOptions& augment, Epoch epoch,
                           const RangeList& positions, Batch& batch);
// One key a row of the batch, mixed from (seed, epoch, sample): what dropout draws from.
void MixRowKeys(const Batch& batch, std::uint64_t seed, std::vector<std::uint64_t>& keys);
// Samples [begin, end) in index order, not augmented; for evaluation.
absl::Status AssembleRange(const Dataset& dataset, std::int64_t begin, std::int64_t end, Batch& batch);

// What a set of the experiments is called, where it is to be had, and whether it is here; for `evenkeel data`.
struct KnownSet {
  std::string name;                // "fashion-mnist"
  std::string origin;              // a sentence: "Debian package dataset-fashion-mnist"
  std::vector<std::string> files;  // as expanded paths
  std::vector<std::string> missing;
};
std::vector<KnownSet> DescribeSets(const InputConfig& input, std::string_view data_folder);

}  // namespace evenkeel
