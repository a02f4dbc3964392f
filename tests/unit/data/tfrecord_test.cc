#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "evenkeel/core/digest.h"
#include "unit/data/test_files.h"

namespace evenkeel {
namespace {

using namespace data_test;  // NOLINT: the helpers of this folder

// protobuf's wire format by hand, so that the files do not come from the reader's own schema.
std::string Varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string Field(int number, const std::string& bytes) {
  return Varint(static_cast<std::uint64_t>(number) << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string BytesFeature(const std::string& bytes) { return Field(1, Field(1, bytes)); }
std::string FloatFeature(const std::vector<float>& values) {
  std::string packed(values.size() * 4, '\0');
  std::memcpy(packed.data(), values.data(), packed.size());
  return Field(2, Field(1, packed));
}
std::string IntFeature(const std::vector<std::int64_t>& values) {
  std::string packed;
  for (std::int64_t value : values) packed += Varint(static_cast<std::uint64_t>(value));
  return Field(3, Field(1, packed));
}
std::string Example(const std::vector<std::pair<std::string, std::string>>& features) {
  std::string map;
  for (const auto& [name, feature] : features) map += Field(1, Field(1, name) + Field(2, feature));
  return Field(1, map);
}
std::string Little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}
std::string Record(const std::string& data) {
  std::string length = Little(data.size(), 8);
  return length + Little(MaskedCrc32c(AsBytes(length)), 4) + data + Little(MaskedCrc32c(AsBytes(data)), 4);
}

InputConfig TfRecord(const std::string& path, std::vector<std::int64_t> shape) {
  InputConfig input;
  input.train = TfRecordSource{{path}, "image", "label", std::move(shape)};
  return input;
}

TEST_CASE("TFRecord's byte strings are images", "[data][tfrecord]") {
  TempFolder folder;
  std::string text =
      Record(Example({{"image", BytesFeature(std::string("\x00\x01\x02\xff", 4))}, {"label", IntFeature({3})}})) +
      Record(Example({{"label", IntFeature({1})}, {"more", IntFeature({-5})}, {"image", BytesFeature("abcd")}}));
  InputConfig input = TfRecord(folder.Write("t", text), {2, 2, 1});
  input.classes = 4;
  OpenedData opened = MustOpen(input);
  CHECK(opened.dataset->spec().image);
  CHECK(opened.dataset->spec().features == Shape({2, 2, 1}));
  CHECK(All(*opened.dataset).features == std::vector<float>{0, 1, 2, 255, 97, 98, 99, 100});
  CHECK(All(*opened.dataset).labels == std::vector<float>{3, 1});
  CHECK(MustOpen(TfRecord(folder.Write("t.gz", Gzip(text)), {4})).dataset->size() == 2);

  // Bytes of a table are standardised feature by feature.
  input = TfRecord(folder.Write("t", text), {4});
  input.normalize = "standardize";
  std::vector<float> features = All(*MustOpen(input).dataset).features;
  CHECK(features[0] == Approx(-1));
  CHECK(features[4] == Approx(1));
  CHECK(features[3] == Approx(1));
}

TEST_CASE("TFRecord's numbers are features, and labels may be several", "[data][tfrecord]") {
  TempFolder folder;
  std::string text = Record(Example({{"image", FloatFeature({1.5, -2})}, {"label", FloatFeature({0.25, 4})}})) +
                     Record(Example({{"image", IntFeature({7, -8})}, {"label", FloatFeature({1, 2})}}));
  OpenedData opened = MustOpen(TfRecord(folder.Write("t", text), {2}));
  CHECK(opened.dataset->spec().label_width == 2);
  CHECK(All(*opened.dataset).features == std::vector<float>{1.5, -2, 7, -8});
  CHECK(All(*opened.dataset).labels == std::vector<float>{0.25, 4, 1, 2});
}

TEST_CASE("wrong TFRecord files say what is wrong and in which record", "[data][tfrecord]") {
  TempFolder folder;
  std::string good = Record(Example({{"image", FloatFeature({1})}, {"label", IntFeature({0})}}));
  auto why = [&](const std::string& text) { return WhyNot(TfRecord(folder.Write("t", text), {1})); };
  std::string where = "[tfrecord] " + folder.path() + "/t record ";
  CHECK(why(good) == "OK");
  std::string flipped = good;
  flipped[20] ^= 1;
  CHECK(Contains(why(good + flipped), "DATA_LOSS: " + where + "1: the data's checksum is wrong"));
  flipped = good;
  flipped[0] ^= 1;
  CHECK(Contains(why(flipped), where + "0: the length's checksum is wrong"));
  CHECK(Contains(why(good + good.substr(0, good.size() - 1)), where + "1: truncated"));
  CHECK(Contains(why(good + good.substr(0, 5)), where + "1: truncated in a record's length"));
  CHECK(Contains(why(""), "no records"));
  CHECK(Contains(why(Record("no proto")), where + "0: 8 bytes that are no tf.Example"));
  CHECK(Contains(why(Record(Example({{"x", IntFeature({1})}, {"label", IntFeature({0})}}))),
                 where + "0: no feature 'image'; there are: label, x"));
  CHECK(Contains(why(Record(Example({{"image", FloatFeature({1, 2})}, {"label", IntFeature({0})}}))),
                 where + "0: feature 'image' has 2 floats, the shape [1] has 1"));
  float infinity = std::numeric_limits<float>::infinity();
  CHECK(Contains(why(Record(Example({{"image", FloatFeature({infinity})}, {"label", IntFeature({0})}}))),
                 where + "0: feature 'image' holds inf"));
  CHECK(Contains(why(good + Record(Example({{"image", FloatFeature({1})}, {"label", IntFeature({0, 1})}}))),
                 where + "1: label 'label' has 2 values; right is 1"));
  CHECK(Contains(why(good + Record(Example({{"image", BytesFeature("a")}, {"label", IntFeature({0})}}))),
                 where + "1: feature 'image' is a list of bytes"));
}

}  // namespace
}  // namespace evenkeel
