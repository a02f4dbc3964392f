#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "unit/data/test_files.h"

namespace evenkeel {
namespace {

using namespace data_test;  // NOLINT: the helpers of this folder

const std::string kPixels("\x00\x01\x02\x03\x04\x05\x0a\x14\x1e\x28\x32\xff", 12);

InputConfig Idx(const std::string& images, const std::string& labels, std::int64_t classes = 10) {
  InputConfig input;
  input.train = IdxSource{images, labels};
  input.classes = classes;
  return input;
}

TEST_CASE("IDX gives images of height, width and one channel, and their labels", "[data][idx]") {
  TempFolder folder;
  InputConfig input = Idx(folder.Write("i", IdxImages(2, 2, 3, kPixels)), folder.Write("l", IdxLabels("\x07\x03")));
  OpenedData opened = MustOpen(input);
  CHECK(opened.dataset->size() == 2);
  CHECK(opened.dataset->spec().features == Shape({2, 3, 1}));
  CHECK(opened.dataset->spec().image);
  CHECK(opened.dataset->spec().classes == 10);
  Batch batch = All(*opened.dataset);
  CHECK(batch.features == std::vector<float>{0, 1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 255});
  CHECK(batch.labels == std::vector<float>{7, 3});
  CHECK(batch.samples == std::vector<std::int64_t>{0, 1});

  input.normalize = "scale";
  CHECK(All(*MustOpen(input).dataset).features[11] == 1.0f);
}

TEST_CASE("standardised images have mean 0 and deviation 1, and evaluation takes the training set's", "[data][idx]") {
  TempFolder folder;
  std::string labels = folder.Write("l", IdxLabels(std::string("\x00\x01", 2)));
  InputConfig input = Idx(folder.Write("i", IdxImages(2, 2, 3, kPixels)), labels);
  input.normalize = "standardize";
  input.eval = IdxSource{folder.Write("e", IdxImages(1, 2, 3, std::string(6, '\x0a'))),
                         folder.Write("el", IdxLabels(std::string("\x01", 1)))};
  OpenedData opened = MustOpen(input);
  double sum = 0, squares = 0;
  for (float value : All(*opened.dataset).features) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  CHECK(sum == Approx(0).margin(1e-5));
  CHECK(squares / 12 == Approx(1));
  auto json = nlohmann::json::parse(opened.statistics_json);
  double mean = json.at("mean")[0], deviation = json.at("std")[0];
  CHECK(mean == Approx(420.0 / 12));
  OpenedData eval = MustOpenEval(input, opened.statistics_json);
  CHECK(All(*eval.dataset).features[0] == Approx((10 - mean) / deviation));
  REQUIRE(eval.dataset->padding().size() == 1);
  CHECK(eval.dataset->padding()[0] == Approx(-mean / deviation));
}

TEST_CASE("wrong IDX files say what is wrong and where", "[data][idx]") {
  TempFolder folder;
  std::string images = folder.Write("images", IdxImages(2, 2, 3, kPixels));
  std::string labels = folder.Write("labels", IdxLabels(std::string("\x00\x01", 2)));

  CHECK(Contains(WhyNot(Idx(labels, labels)), "wrong magic 0x00000801; a file of images begins with 0x00000803"));
  std::string cut = folder.Write("cut", IdxImages(2, 2, 3, kPixels.substr(0, 11)));
  CHECK(Contains(WhyNot(Idx(cut, labels)), "DATA_LOSS: [idx] " + cut + ": truncated: 11 bytes"));
  std::string header = folder.Write("header", IdxImages(2, 2, 3, "").substr(0, 9));
  CHECK(Contains(WhyNot(Idx(header, labels)), "truncated: 9 bytes, less than the header's 16"));
  std::string longer = folder.Write("longer", IdxImages(2, 2, 3, kPixels + "x"));
  CHECK(Contains(WhyNot(Idx(longer, labels)), "too long: 13 bytes"));
  std::string three = folder.Write("three", IdxLabels("abc"));
  CHECK(Contains(WhyNot(Idx(images, three)), "holds 2 images and " + three + " 3 labels"));
  std::string eleven = folder.Write("eleven", IdxLabels(std::string("\x00\x0b", 2)));
  CHECK(Contains(WhyNot(Idx(images, eleven)),
                 "[idx] " + eleven + " record 1: label 11 is out of range: input.classes is 10"));
  std::string huge = folder.Write("huge", IdxImages(0xffffffffu, 0xffffffffu, 0xffffffffu, "x"));
  CHECK(Contains(WhyNot(Idx(huge, labels)), "DATA_LOSS"));
}

TEST_CASE("the fingerprint tells samples, order, labels and normalisation apart", "[data][idx]") {
  TempFolder folder;
  auto fingerprint = [&](std::string pixels, std::string labels, std::string normalize) {
    InputConfig input = Idx(folder.Write("i", IdxImages(2, 2, 3, pixels)), folder.Write("l", IdxLabels(labels)));
    input.normalize = normalize;
    return MustOpen(input).fingerprint;
  };
  std::string first = fingerprint(kPixels, "\x01\x02", "none");
  CHECK(first.size() == 16);
  CHECK(first.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(first == fingerprint(kPixels, "\x01\x02", "none"));
  CHECK(first != fingerprint(kPixels.substr(6) + kPixels.substr(0, 6), "\x01\x02", "none"));
  CHECK(first != fingerprint(kPixels, "\x02\x01", "none"));
  CHECK(first != fingerprint(kPixels, "\x01\x02", "scale"));
}

std::string CifarRecord(char label, int red) {
  std::string record(1, label);
  for (int i = 0; i < 1024; ++i) record.push_back(static_cast<char>(red));
  for (int i = 0; i < 1024; ++i) record.push_back(static_cast<char>(i % 256));
  for (int i = 0; i < 1024; ++i) record.push_back(static_cast<char>(255 - i % 256));
  return record;
}

TEST_CASE("CIFAR-10's planes become interleaved channels, over several files", "[data][cifar10]") {
  TempFolder folder;
  InputConfig input;
  input.train = Cifar10Source{{folder.Write("a.bin", CifarRecord(3, 200) + CifarRecord(9, 100)),
                               folder.Write("b.bin.gz", Gzip(CifarRecord(0, 50)))}};
  input.classes = 10;
  OpenedData opened = MustOpen(input);
  CHECK(opened.dataset->spec().features == Shape({32, 32, 3}));
  Batch batch = All(*opened.dataset);
  CHECK(batch.labels == std::vector<float>{3, 9, 0});
  auto pixel = [&](std::size_t sample, std::size_t p, std::size_t c) {
    return batch.features[sample * 3072 + p * 3 + c];
  };
  CHECK(pixel(0, 77, 0) == 200);
  CHECK(pixel(0, 77, 1) == 77);
  CHECK(pixel(0, 77, 2) == 178);
  CHECK(pixel(1, 1023, 0) == 100);
  CHECK(pixel(2, 0, 0) == 50);
  CHECK(pixel(2, 0, 2) == 255);

  input.normalize = "standardize";
  opened = MustOpen(input);
  auto json = nlohmann::json::parse(opened.statistics_json);
  REQUIRE(json.at("mean").size() == 3);
  CHECK(json.at("mean")[0].get<double>() == Approx(350.0 / 3));
  CHECK(json.at("mean")[1].get<double>() == Approx(127.5));
  CHECK(All(*opened.dataset).features[1] == Approx((0 - 127.5) / json.at("std")[1].get<double>()));
}

TEST_CASE("wrong CIFAR-10 files say what is wrong and where", "[data][cifar10]") {
  TempFolder folder;
  InputConfig input;
  input.classes = 10;
  std::string cut = folder.Write("cut.bin", CifarRecord(1, 1) + CifarRecord(1, 1).substr(0, 100));
  input.train = Cifar10Source{{cut}};
  CHECK(Contains(WhyNot(input), "DATA_LOSS: [cifar10] " + cut + ": truncated: 3173 bytes are 1 records"));
  std::string label = folder.Write("label.bin", CifarRecord(1, 1) + CifarRecord(10, 1));
  input.train = Cifar10Source{{label}};
  CHECK(Contains(WhyNot(input), "[cifar10] " + label + " record 1: label 10 is out of range"));
}

}  // namespace
}  // namespace evenkeel
