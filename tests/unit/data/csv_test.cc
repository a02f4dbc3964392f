#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "data/csv_records.h"
#include "unit/data/test_files.h"

namespace evenkeel {
namespace {

using namespace data_test;  // NOLINT: the helpers of this folder

InputConfig Csv(CsvSource source) {
  InputConfig input;
  input.train = std::move(source);
  return input;
}

std::vector<std::vector<std::string>> Records(const std::string& text, char separator = ',') {
  std::string path = "t.csv";
  data::CsvRecords records(text, separator, path);
  std::vector<std::vector<std::string>> all;
  while (*records.Next()) all.push_back(records.fields());
  return all;
}

TEST_CASE("CSV fields are split as RFC 4180 says", "[data][csv]") {
  using Rows = std::vector<std::vector<std::string>>;
  CHECK(Records("a,b\r\nc,d\n") == Rows{{"a", "b"}, {"c", "d"}});
  CHECK(Records("a,,\n,b,") == Rows{{"a", "", ""}, {"", "b", ""}});
  CHECK(Records("\"a,\"\"x\"\"\",b\n\"two\nlines\",\"\"") == Rows{{"a,\"x\"", "b"}, {"two\nlines", ""}});
  CHECK(Records("a;b\n\n\nc;d", ';') == Rows{{"a", "b"}, {"c", "d"}});
  CHECK(Records("\xef\xbb\xbfname\n1") == Rows{{"name"}, {"1"}});
  CHECK(Records("").empty());
}

TEST_CASE("line numbers count lines inside quotes", "[data][csv]") {
  std::string text = "a\n\"x\ny\"\n\nb", path = "t.csv";
  data::CsvRecords records(text, ',', path);
  std::vector<std::int64_t> lines;
  while (*records.Next()) lines.push_back(records.line());
  CHECK(lines == std::vector<std::int64_t>{1, 2, 5});
}

TEST_CASE("CSV columns are chosen by name, in the order asked for", "[data][csv]") {
  TempFolder folder;
  std::string path = folder.Write("t.csv", "\"x\";\"y\";z;\"label\"\n1;2;3;10\n 4 ;+5;6e1;11\n");
  OpenedData all = MustOpen(Csv({.files = {path}, .separator = ";", .label = "label"}));
  CHECK(all.dataset->spec().features == Shape({3}));
  CHECK_FALSE(all.dataset->spec().image);
  CHECK(All(*all.dataset).features == std::vector<float>{1, 2, 3, 4, 5, 60});
  CHECK(All(*all.dataset).labels == std::vector<float>{10, 11});
  OpenedData some = MustOpen(Csv({.files = {path}, .separator = ";", .label = "y", .columns = {"z", "x"}}));
  CHECK(All(*some.dataset).features == std::vector<float>{3, 1, 60, 4});
  CHECK(All(*some.dataset).labels == std::vector<float>{2, 5});
}

TEST_CASE("a CSV without a header names columns by number", "[data][csv]") {
  TempFolder folder;
  std::string path = folder.Write("t.csv", "1,2,3\n4,5,6\n");
  OpenedData opened = MustOpen(Csv({.files = {path}, .header = false, .label = "0"}));
  CHECK(All(*opened.dataset).features == std::vector<float>{2, 3, 5, 6});
  CHECK(Contains(WhyNot(Csv({.files = {path}, .header = false, .label = "3"})), "numbers from 0 to 2"));
}

TEST_CASE("categories are one-hot by the sorted values of training; unseen ones are all zeros", "[data][csv]") {
  TempFolder folder;
  InputConfig input = Csv({.files = {folder.Write("t.csv", "c,x,y\nred,1,0\nblue,2,1\nred,3,1\n\"a,b\",4,1\n")},
                           .label = "y",
                           .categorical = {"c"}});
  input.eval =
      CsvSource{.files = {folder.Write("e.csv", "y,c,x\n1,green,5\n0,red,6\n")}, .label = "y", .categorical = {"c"}};
  OpenedData opened = MustOpen(input);
  CHECK(opened.dataset->spec().features == Shape({4}));
  CHECK(All(*opened.dataset).features ==
        std::vector<float>{0, 0, 1, 1, /**/ 0, 1, 0, 2, /**/ 0, 0, 1, 3, /**/ 1, 0, 0, 4});
  // The evaluation file has another order of columns.
  OpenedData eval = MustOpenEval(input, opened.statistics_json);
  CHECK(All(*eval.dataset).features == std::vector<float>{0, 0, 0, 5, /**/ 0, 0, 1, 6});
  CHECK(All(*eval.dataset).labels == std::vector<float>{1, 0});

  // Standardising leaves the one-hot columns alone.
  input.normalize = "standardize";
  opened = MustOpen(input);
  CHECK(All(*opened.dataset).features[2] == 1);
  CHECK(All(*opened.dataset).features[3] == Approx(-1.5 / std::sqrt(1.25)));
  CHECK(All(*MustOpenEval(input, opened.statistics_json).dataset).features[3] == Approx(2.5 / std::sqrt(1.25)));
}

TEST_CASE("missing cells follow the policy", "[data][csv]") {
  TempFolder folder;
  std::string path = folder.Write("t.csv", "x,c,y\n1,a,1\n,b,2\n?,a,3\n5,NA,4\nnan,b,5\n");
  auto open = [&](const std::string& missing) {
    return MustOpen(Csv({.files = {path}, .label = "y", .columns = {"x"}, .missing = missing}));
  };
  CHECK(All(*open("mean").dataset).features == std::vector<float>{1, 3, 3, 5, 3});
  CHECK(All(*open("zero").dataset).features == std::vector<float>{1, 0, 0, 5, 0});
  CHECK(All(*open("drop_row").dataset).features == std::vector<float>{1, 5});
  CHECK(All(*open("drop_row").dataset).labels == std::vector<float>{1, 4});
  CHECK(Contains(WhyNot(Csv({.files = {path}, .label = "y", .columns = {"x"}})),
                 "[csv] " + path + " line 3, column 'x': '' is missing"));
  OpenedData category =
      MustOpen(Csv({.files = {path}, .label = "y", .columns = {"c"}, .categorical = {"c"}, .missing = "zero"}));
  CHECK(All(*category.dataset).features == std::vector<float>{1, 0, 0, 1, 1, 0, 0, 0, 0, 1});
  // The training set's mean fills evaluation's gaps.
  InputConfig input = Csv({.files = {path}, .label = "y", .columns = {"x"}, .missing = "mean"});
  input.eval = CsvSource{
      .files = {folder.Write("e.csv", "x,y\nNA,1\n100,2\n")}, .label = "y", .columns = {"x"}, .missing = "mean"};
  CHECK(All(*MustOpenEval(input, MustOpen(input).statistics_json).dataset).features == std::vector<float>{3, 100});
}

TEST_CASE("wrong CSV files say what is wrong and on which line", "[data][csv]") {
  TempFolder folder;
  auto why = [&](const std::string& text, CsvSource source = {.label = "y"}) {
    source.files = {folder.Write("t.csv", text)};
    return WhyNot(Csv(source));
  };
  std::string where = "[csv] " + folder.path() + "/t.csv line ";
  CHECK(Contains(why("x,y\n1,2\n3\n"), where + "3: too few columns: 1, the header has 2"));
  CHECK(Contains(why("x,y\n1,2,3\n"), where + "2: too many columns: 3, the header has 2"));
  CHECK(Contains(why("x,y\n1,2\ninf,2\n"), where + "3, column 'x': 'inf' is not finite"));
  CHECK(Contains(why("x,y\n1e39,2\n"), where + "2, column 'x': '1e39' is not finite"));
  CHECK(Contains(why("x,y\n1,-inf\n"), where + "2, column 'y': '-inf' is not finite"));
  CHECK(Contains(why("x,y\nabc,2\n"), where + "2, column 'x': 'abc' is not a number"));
  CHECK(Contains(why("x,y\n1,\n"), where + "2, column 'y': '' is missing"));
  CHECK(Contains(why("x,y\n\"1,2\n"), where + "2: a quote opens here and never closes"));
  CHECK(Contains(why("x,y\n\"1\"2,3\n"), where + "2: '2,3\n' after the closing quote of '1'"));
  CHECK(Contains(why("x,z\n1,2\n"), "label 'y' is not in the header: x, z"));
  CHECK(Contains(why("x,y\n1,2\n", {.label = "y", .columns = {"q"}}), "column 'q' is not in the header"));
  CHECK(Contains(why("x,y\n1,2\n", {.label = "y", .columns = {"y"}}), "column 'y' is the label"));
  CHECK(Contains(why("x,y\n1,2\n", {.label = "y", .categorical = {"q"}}), "categorical column 'q'"));
  CHECK(Contains(why("x,x,y\n1,2,3\n"), "column 'x' is in the header twice"));
  CHECK(Contains(why("x,y\n"), "a header and no rows"));
  CHECK(Contains(why(""), "no lines"));
  CHECK(Contains(why("x,y\n1,2\n", {.separator = "ab", .label = "y"}), "must be one byte"));
  InputConfig classes = Csv({.files = {folder.Write("c.csv", "x,y\n1,2\n1,1.5\n")}, .label = "y"});
  classes.classes = 3;
  CHECK(Contains(WhyNot(classes), "c.csv line 3: label 1.5 is out of range"));
  InputConfig scale = Csv({.files = {folder.Write("s.csv", "x,y\n1,2\n")}, .label = "y"});
  scale.normalize = "scale";
  CHECK(Contains(WhyNot(scale), "scale divides bytes by 255"));
}

TEST_CASE("labels are standardised and can be mapped back", "[data][csv]") {
  TempFolder folder;
  InputConfig input = Csv({.files = {folder.Write("t.csv", "x,y\n1,10\n2,20\n3,30\n")}, .label = "y"});
  input.label_normalize = "standardize";
  OpenedData opened = MustOpen(input);
  LabelScale scale = *LabelScaleFrom(opened.statistics_json);
  std::vector<float> labels = All(*opened.dataset).labels;
  CHECK(labels[1] == Approx(0).margin(1e-6));
  CHECK(labels[0] * scale.scale + scale.offset == Approx(10));
  CHECK(labels[2] * scale.scale + scale.offset == Approx(30));
  input.label_normalize = "none";
  CHECK(LabelScaleFrom(MustOpen(input).statistics_json)->scale == 1);
  CHECK_FALSE(LabelScaleFrom("{}").ok());
  CHECK_FALSE(LabelScaleFrom("no json").ok());
}

TEST_CASE("a split's statistics come from its training part alone", "[data][csv][split]") {
  TempFolder folder;
  std::string text = "x,y\n";
  for (int i = 0; i < 50; ++i) text += std::to_string(i * i) + "," + std::to_string(i) + "\n";
  InputConfig input = Csv({.files = {folder.Write("t.csv", text)}, .label = "y"});
  input.eval_fraction = 0.2;
  input.split_seed = 3;
  OpenedData raw = MustOpen(input);
  OpenedData raw_eval = MustOpenEval(input, raw.statistics_json);
  CHECK(raw.dataset->size() == 40);
  CHECK(raw_eval.dataset->size() == 10);
  std::set<float> labels;
  for (float label : All(*raw.dataset).labels) labels.insert(label);
  for (float label : All(*raw_eval.dataset).labels) labels.insert(label);
  CHECK(labels.size() == 50);
  double mean = 0;
  for (float x : All(*raw.dataset).features) mean += x / 40.0;
  input.normalize = "standardize";
  OpenedData opened = MustOpen(input);
  CHECK(nlohmann::json::parse(opened.statistics_json).at("mean")[0].get<double>() == Approx(mean));
  CHECK(opened.fingerprint != raw.fingerprint);
  CHECK(opened.fingerprint != MustOpenEval(input, opened.statistics_json).fingerprint);
  input.split_seed = 4;
  CHECK(MustOpen(input).fingerprint != opened.fingerprint);
}

TEST_CASE("an experiment without evaluation data says so", "[data]") {
  InputConfig input = Csv({.files = {"/nowhere/t.csv"}, .label = "y"});
  CHECK(Contains(WhyNotEval(input, "{}"), "NOT_FOUND: [data] the experiment has no evaluation data"));
}

}  // namespace
}  // namespace evenkeel
