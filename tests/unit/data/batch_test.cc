#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "unit/data/test_files.h"

namespace evenkeel {
namespace {

using namespace data_test;  // NOLINT: the helpers of this folder

// Twelve images of 4 x 4 x 2 pixels that are told apart by every value: sample * 32 + element.
class Pictures final : public Dataset {
 public:
  Pictures() {
    spec_.features = {4, 4, 2};
    spec_.image = true;
    spec_.classes = 12;
  }
  const ExampleSpec& spec() const override { return spec_; }
  std::int64_t size() const override { return 12; }
  absl::Status Append(std::int64_t index, Batch& batch) const override {
    for (int i = 0; i < 32; ++i) batch.features.push_back(static_cast<float>(index * 32 + i));
    batch.labels.push_back(static_cast<float>(index + wrong_label));
    return absl::OkStatus();
  }
  std::span<const float> padding() const override { return padding_; }

  std::int64_t wrong_label = 0;

 private:
  ExampleSpec spec_;
  std::vector<float> padding_ = {-1, -2};
};

Batch Assemble(const Dataset& dataset, const AugmentOptions& augment, std::uint64_t epoch, const RangeList& positions) {
  Batch batch;
  absl::Status status = AssembleBatch(dataset, augment, Epoch(epoch), positions, batch);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return batch;
}

TEST_CASE("a batch holds the permutation's samples at its positions, in order", "[data][batch]") {
  Pictures pictures;
  EpochPermutation permutation(12, 5, Epoch(2));
  Batch batch = Assemble(pictures, {.seed = 5}, 2, {{1, 3}, {7, 8}});
  CHECK(batch.epoch == Epoch(2));
  CHECK(batch.samples == std::vector<std::int64_t>{permutation(1), permutation(2), permutation(7)});
  REQUIRE(batch.features.size() == 96);
  CHECK(batch.features[32] == static_cast<float>(permutation(2) * 32));
  CHECK(batch.labels[2] == static_cast<float>(permutation(7)));
}

TEST_CASE("an assembled batch replaces the one before without shrinking its buffers", "[data][batch]") {
  Pictures pictures;
  Batch batch;
  REQUIRE(AssembleBatch(pictures, {}, Epoch(0), {{0, 12}}, batch).ok());
  const float* buffer = batch.features.data();
  REQUIRE(AssembleBatch(pictures, {}, Epoch(0), {{0, 2}}, batch).ok());
  CHECK(batch.size() == 2);
  CHECK(batch.features.size() == 64);
  CHECK(batch.features.data() == buffer);
}

// What a crop and a flip must make of a sample, by the definition.
std::vector<float> Augmented(std::int64_t sample, int top, int left, bool flip, int padding) {
  std::vector<float> out;
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 4; ++x) {
      int from_y = y + top - padding, from_x = (flip ? 3 - x : x) + left - padding;
      bool inside = from_y >= 0 && from_y < 4 && from_x >= 0 && from_x < 4;
      for (int c = 0; c < 2; ++c) {
        out.push_back(inside ? static_cast<float>(sample * 32 + (from_y * 4 + from_x) * 2 + c)
                             : static_cast<float>(-1 - c));
      }
    }
  }
  return out;
}

TEST_CASE("each crop and flip is a window of the padded image, and all windows come up", "[data][batch]") {
  Pictures pictures;
  std::map<std::vector<float>, int> windows;
  for (int top = 0; top <= 2; ++top) {
    for (int left = 0; left <= 2; ++left) {
      for (bool flip : {false, true}) windows[Augmented(3, top, left, flip, 1)] = 0;
    }
  }
  REQUIRE(windows.size() == 18);
  for (std::uint64_t epoch = 0; epoch < 600; ++epoch) {
    Batch batch = Assemble(pictures, {.seed = 1, .flip_horizontal = true, .crop_padding = 1}, epoch, {{0, 12}});
    auto at = std::find(batch.samples.begin(), batch.samples.end(), 3) - batch.samples.begin();
    std::vector<float> image(batch.features.begin() + at * 32, batch.features.begin() + (at + 1) * 32);
    auto window = windows.find(image);
    REQUIRE(window != windows.end());
    ++window->second;
  }
  for (const auto& [image, count] : windows) CHECK(count > 10);  // 33 on average
}

TEST_CASE("augmentation depends on seed, epoch and sample, not on who assembles which batch", "[data][batch]") {
  Pictures pictures;
  AugmentOptions augment{.seed = 9, .flip_horizontal = true, .crop_padding = 2};
  Batch whole = Assemble(pictures, augment, 4, {{0, 12}});
  Batch part = Assemble(pictures, augment, 4, {{5, 9}});
  CHECK(std::equal(part.features.begin(), part.features.end(), whole.features.begin() + 5 * 32));
  AugmentOptions crop_only{.seed = 9, .crop_padding = 2};
  CHECK(Assemble(pictures, crop_only, 4, {{0, 12}}).samples == whole.samples);
  CHECK(Assemble(pictures, augment, 5, {{0, 12}}).features != whole.features);
}

TEST_CASE("cropping after normalisation is as padding the raw image with zeros before it", "[data][batch]") {
  TempFolder folder;
  InputConfig input;
  input.train =
      IdxSource{folder.Write("i", IdxImages(1, 2, 2, "\x0a\x14\x1e\x28")), folder.Write("l", IdxLabels("\x01"))};
  AugmentOptions augment{.seed = 2, .crop_padding = 2};
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    input.normalize = "none";
    Batch raw = Assemble(*MustOpen(input).dataset, augment, epoch, {{0, 1}});
    input.normalize = "standardize";
    Batch normal = Assemble(*MustOpen(input).dataset, augment, epoch, {{0, 1}});
    for (std::size_t i = 0; i < 4; ++i) CHECK(normal.features[i] == Approx((raw.features[i] - 25) / 11.18034));
  }
}

TEST_CASE("a batch that cannot be is refused", "[data][batch]") {
  Pictures pictures;
  Batch batch;
  CHECK(AssembleBatch(pictures, {}, Epoch(0), {{10, 13}}, batch).code() == absl::StatusCode::kOutOfRange);
  CHECK(AssembleRange(pictures, 5, 13, batch).code() == absl::StatusCode::kOutOfRange);
  pictures.wrong_label = 5;
  CHECK(Contains(AssembleRange(pictures, 0, 12, batch).ToString(), "sample 7: label 12 is out of range"));
  TempFolder folder;
  InputConfig input;
  input.train = CsvSource{.files = {folder.Write("t.csv", "x,y\n1,2\n")}, .label = "y"};
  OpenedData table = MustOpen(input);
  absl::Status status = AssembleBatch(*table.dataset, {.flip_horizontal = true}, Epoch(0), {{0, 1}}, batch);
  CHECK(Contains(status.ToString(), "need images [height, width, channels]; these samples are [1]"));
}

TEST_CASE("a registered source is opened, split and fingerprinted as the others are", "[data][custom]") {
  RegisterDataset(
      "pictures",
      [](const Attributes& attributes, bool training, std::string_view) -> absl::StatusOr<std::unique_ptr<Dataset>> {
        auto pictures = std::make_unique<Pictures>();
        pictures->wrong_label = attributes.count("broken") && training ? 100 : 0;
        return pictures;
      });
  InputConfig input;
  input.train = CustomSource{"pictures", {}};
  OpenedData opened = MustOpen(input);
  CHECK(opened.dataset->size() == 12);
  CHECK(opened.fingerprint == MustOpen(input).fingerprint);
  CHECK(LabelScaleFrom(opened.statistics_json)->scale == 1);
  input.eval_fraction = 0.25;
  OpenedData training = MustOpen(input);
  OpenedData eval = MustOpenEval(input, training.statistics_json);
  CHECK(training.dataset->size() == 9);
  CHECK(eval.dataset->size() == 3);
  CHECK(training.fingerprint != opened.fingerprint);
  input.train = CustomSource{"pictures", {{"broken", true}}};
  CHECK(Contains(WhyNot(input), "is out of range"));
  input.train = CustomSource{"picture", {}};
  CHECK(Contains(WhyNot(input), "no data source is registered as 'picture'; registered are: pictures"));
}

}  // namespace
}  // namespace evenkeel
