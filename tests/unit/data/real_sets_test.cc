#include <catch2/catch.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "unit/data/test_files.h"

namespace evenkeel {
namespace {

using namespace data_test;  // NOLINT: the helpers of this folder

// The folder of a set below EVENKEEL_DATA; empty, with a word, when it is not here.
std::string SetFolder(const std::string& name) {
  std::string folder = DataFolder().empty() ? "" : DataFolder() + "/" + name;
  if (!folder.empty() && std::filesystem::exists(folder)) return folder;
  std::cout << "skipped: EVENKEEL_DATA has no " << name << "\n";
  return {};
}

double Sum(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

InputConfig IdxIn(const std::string& folder) {
  InputConfig input;
  input.train = IdxSource{folder + "/train-images-idx3-ubyte.gz", folder + "/train-labels-idx1-ubyte.gz"};
  input.eval = IdxSource{folder + "/t10k-images-idx3-ubyte.gz", folder + "/t10k-labels-idx1-ubyte.gz"};
  input.classes = 10;
  input.normalize = "standardize";
  return input;
}

TEST_CASE("MNIST has 60,000 and 10,000 images of mean .1307 and deviation .3081", "[data][real]") {
  std::string folder = SetFolder("mnist");
  if (folder.empty()) return;
  OpenedData training = MustOpen(IdxIn(folder));
  CHECK(training.dataset->size() == 60000);
  CHECK(training.dataset->spec().features == Shape({28, 28, 1}));
  auto json = nlohmann::json::parse(training.statistics_json);
  CHECK(json.at("mean")[0].get<double>() / 255 == Approx(.1307).margin(5e-5));
  CHECK(json.at("std")[0].get<double>() / 255 == Approx(.3081).margin(5e-5));
  OpenedData eval = MustOpenEval(IdxIn(folder), training.statistics_json);
  CHECK(eval.dataset->size() == 10000);
  // The first test digits are 7, 2, 1, 0, 4.
  Batch batch;
  REQUIRE(AssembleRange(*eval.dataset, 0, 5, batch).ok());
  CHECK(batch.labels == std::vector<float>{7, 2, 1, 0, 4});
}

TEST_CASE("Fashion-MNIST has 60,000 and 10,000 images of mean .2860 and deviation .3530", "[data][real]") {
  std::string folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) {
    std::cout << "skipped: the package dataset-fashion-mnist is not installed\n";
    return;
  }
  // By way of the data folder, where the set is not: the package's place is found.
  TempFolder elsewhere;
  std::string saved = DataFolder();
  setenv("EVENKEEL_DATA", elsewhere.path().c_str(), 1);
  OpenedData training = MustOpen(IdxIn("${EVENKEEL_DATA}/fashion-mnist"));
  if (saved.empty()) {
    unsetenv("EVENKEEL_DATA");
  } else {
    setenv("EVENKEEL_DATA", saved.c_str(), 1);
  }
  CHECK(training.dataset->size() == 60000);
  auto json = nlohmann::json::parse(training.statistics_json);
  CHECK(json.at("mean")[0].get<double>() / 255 == Approx(.2860).margin(5e-5));
  CHECK(json.at("std")[0].get<double>() / 255 == Approx(.3530).margin(5e-5));
  CHECK(MustOpenEval(IdxIn(folder), training.statistics_json).dataset->size() == 10000);
}

TEST_CASE("the CIFAR-10 subset has 1,000 images a class", "[data][real]") {
  std::string folder = SetFolder("cifar10");
  if (folder.empty()) return;
  InputConfig input;
  input.train = Cifar10Source{{folder + "/train-10000.bin.gz"}};
  input.eval = Cifar10Source{{folder + "/test-2000.bin.gz"}};
  input.classes = 10;
  input.normalize = "standardize";
  OpenedData training = MustOpen(input);
  CHECK(training.dataset->size() == 10000);
  // The full set's means are .4914 .4822 .4465.
  auto json = nlohmann::json::parse(training.statistics_json);
  CHECK(json.at("mean")[0].get<double>() / 255 == Approx(.4914).margin(5e-3));
  CHECK(json.at("mean")[1].get<double>() / 255 == Approx(.4822).margin(5e-3));
  CHECK(json.at("mean")[2].get<double>() / 255 == Approx(.4465).margin(5e-3));
  Batch batch;
  REQUIRE(AssembleRange(*training.dataset, 0, 10000, batch).ok());
  std::vector<int> classes(10);
  for (float label : batch.labels) ++classes[static_cast<std::size_t>(label)];
  CHECK(classes == std::vector<int>(10, 1000));
  CHECK(MustOpenEval(input, training.statistics_json).dataset->size() == 2000);
}

TEST_CASE("a9a has 32,561 and 16,281 rows of 123 features", "[data][real]") {
  std::string folder = SetFolder("a9a");
  if (folder.empty()) return;
  InputConfig input;
  input.train = SvmlightSource{.files = {folder + "/a9a.gz"}};
  input.eval = SvmlightSource{.files = {folder + "/a9a.t.gz"}};
  input.sparse = true;
  OpenedData training = MustOpen(input);
  CHECK(training.dataset->size() == 32561);
  CHECK(training.dataset->spec().features == Shape({123}));
  Batch rows = All(*training.dataset);
  CHECK(Sum(rows.labels) == 7841);
  CHECK(rows.values.size() == 451592);
  OpenedData eval = MustOpenEval(input, training.statistics_json);
  CHECK(eval.dataset->size() == 16281);
  CHECK(eval.dataset->spec().features == Shape({123}));
  CHECK(Sum(All(*eval.dataset).labels) == 3846);
  input.sparse = false;
  CHECK(Sum(All(*MustOpen(input).dataset).features) == Sum(rows.values));
}

TEST_CASE("white wine has 4,898 rows of 11 features, split 80 to 20", "[data][real]") {
  std::string folder = SetFolder("wine-quality");
  if (folder.empty()) return;
  InputConfig input;
  input.train = CsvSource{.files = {folder + "/winequality-white.csv"}, .separator = ";", .label = "quality"};
  CHECK(MustOpen(input).dataset->size() == 4898);
  CHECK(Sum(All(*MustOpen(input).dataset).labels) / 4898 == Approx(5.8779).margin(1e-4));
  input.eval_fraction = 0.2;
  input.normalize = "standardize";
  input.label_normalize = "standardize";
  OpenedData training = MustOpen(input);
  OpenedData eval = MustOpenEval(input, training.statistics_json);
  CHECK(training.dataset->size() == 3918);
  CHECK(eval.dataset->size() == 980);
  CHECK(training.dataset->spec().features == Shape({11}));
  CHECK(Sum(All(*training.dataset).features) == Approx(0).margin(0.5));
  CHECK(Sum(All(*training.dataset).labels) == Approx(0).margin(0.01));
}

}  // namespace
}  // namespace evenkeel
