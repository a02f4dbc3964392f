#include <catch2/catch.hpp>

#include "unit/data/test_files.h"

namespace evenkeel {
namespace {

using namespace data_test;  // NOLINT: the helpers of this folder

InputConfig Svmlight(SvmlightSource source, bool sparse = false) {
  InputConfig input;
  input.train = std::move(source);
  input.sparse = sparse;
  return input;
}

const char kText[] = "# a comment\n+1 1:0.5 3:2 # the end\n\n-1 qid:7 2:-1\n-1\n";

TEST_CASE("svmlight rows are dense or CSR, with labels 0 and 1", "[data][svmlight]") {
  TempFolder folder;
  std::string path = folder.Write("t.svm", kText);
  OpenedData dense = MustOpen(Svmlight({.files = {path}}));
  CHECK(dense.dataset->spec().features == Shape({3}));
  CHECK(All(*dense.dataset).features == std::vector<float>{0.5, 0, 2, 0, -1, 0, 0, 0, 0});
  CHECK(All(*dense.dataset).labels == std::vector<float>{1, 0, 0});

  OpenedData sparse = MustOpen(Svmlight({.files = {path}, .features = 5}, true));
  CHECK(sparse.dataset->spec().sparse);
  CHECK(sparse.dataset->spec().features == Shape({5}));
  Batch batch = All(*sparse.dataset);
  CHECK(batch.features.empty());
  CHECK(batch.row_offsets == std::vector<std::int64_t>{0, 2, 3, 3});
  CHECK(batch.columns == std::vector<std::int32_t>{0, 2, 1});
  CHECK(batch.values == std::vector<float>{0.5, 2, -1});

  OpenedData zero = MustOpen(Svmlight({.files = {folder.Write("z.svm", "1 0:3 1:4\n0 1:5\n")}, .zero_based = true}));
  CHECK(All(*zero.dataset).features == std::vector<float>{3, 4, 0, 5});
  CHECK(All(*zero.dataset).labels == std::vector<float>{1, 0});
}

TEST_CASE("evaluation has the training set's features and label mapping", "[data][svmlight]") {
  TempFolder folder;
  InputConfig input = Svmlight({.files = {folder.Write("t.svm", kText)}});
  input.eval = SvmlightSource{.files = {folder.Write("e.svm", "+1 1:7 9:1\n+1 2:1\n")}};
  OpenedData opened = MustOpen(input);
  OpenedData eval = MustOpenEval(input, opened.statistics_json);
  CHECK(eval.dataset->spec().features == Shape({3}));
  CHECK(All(*eval.dataset).features == std::vector<float>{7, 0, 0, 0, 1, 0});
  CHECK(All(*eval.dataset).labels == std::vector<float>{1, 1});
  input.eval = SvmlightSource{.files = {folder.Write("w.svm", "0 1:7\n")}};
  CHECK(Contains(WhyNotEval(input, opened.statistics_json), "line 1: label 0, but the training labels are -1 and +1"));
}

TEST_CASE("svmlight labels may be classes or targets", "[data][svmlight]") {
  TempFolder folder;
  std::string path = folder.Write("t.svm", "0 1:1\n2 1:1\n1 1:2\n");
  InputConfig input = Svmlight({.files = {path}});
  CHECK(All(*MustOpen(input).dataset).labels == std::vector<float>{0, 2, 1});
  input.classes = 3;
  CHECK(MustOpen(input).dataset->spec().classes == 3);
  input.classes = 2;
  CHECK(Contains(WhyNot(input), "line 2: label 2 is out of range"));
}

TEST_CASE("wrong svmlight files say what is wrong and on which line", "[data][svmlight]") {
  TempFolder folder;
  auto why = [&](const std::string& text, SvmlightSource source = {}) {
    source.files = {folder.Write("t.svm", text)};
    return WhyNot(Svmlight(source));
  };
  std::string where = "[svmlight] " + folder.path() + "/t.svm line ";
  CHECK(Contains(why("1 1:1\n1 3:1 2:1\n"), where + "2: index 2 comes after 3; indices must ascend"));
  CHECK(Contains(why("1 3:1 3:1\n"), where + "1: index 3 comes after 3"));
  CHECK(Contains(why("1 0:1\n"), where + "1: index 0, but indices count from 1"));
  CHECK(Contains(why("1 7:1\n", {.features = 6}), where + "1: index 7 is beyond the 6 features"));
  CHECK(Contains(why("1 a:1\n"), where + "1: 'a:1' is not index:value"));
  CHECK(Contains(why("1 5\n"), where + "1: '5' is not index:value"));
  CHECK(Contains(why("1 -5:1\n"), where + "1: '-5:1' is not index:value"));
  CHECK(Contains(why("1 1:nan\n"), where + "1: value 'nan' of index 1 is not a finite number"));
  CHECK(Contains(why("1 1:x\n"), where + "1: value 'x' of index 1"));
  CHECK(Contains(why("x 1:1\n"), where + "1: label 'x' is not a finite number"));
  CHECK(Contains(why("# nothing\n"), "no rows"));
  std::string signs;
  for (int i = 0; i < 20; ++i) signs += i % 2 ? "+1 1:1\n" : "-1 1:1\n";
  CHECK(Contains(why(signs + "7 1:1\n"), where + "21: label 7 among labels of -1 and +1"));
}

TEST_CASE("what makes no sense of sparse rows is refused", "[data][svmlight]") {
  TempFolder folder;
  InputConfig input = Svmlight({.files = {folder.Write("t.svm", kText)}}, true);
  input.normalize = "standardize";
  CHECK(Contains(WhyNot(input), "standardize would fill sparse rows"));
  InputConfig csv;
  csv.train = CsvSource{.files = {folder.Write("t.csv", "x,y\n1,2\n")}, .label = "y"};
  csv.sparse = true;
  CHECK(Contains(WhyNot(csv), "input.sparse is for svmlight"));
}

}  // namespace
}  // namespace evenkeel
