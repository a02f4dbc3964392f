#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "data/csv_records.h"
#include "data/files.h"
#include "data/readers.h"
#include "data/text.h"
#include "evenkeel/core/status.h"

namespace evenkeel::data {
namespace {

constexpr absl::string_view kFormat = "csv";
constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

bool IsMissing(absl::string_view cell) {
  return cell.empty() || cell == "?" || cell == "NA" || absl::EqualsIgnoreCase(cell, "nan");
}

// Which fields of a file's records are wanted.
struct Selection {
  std::size_t label = 0;
  std::vector<std::size_t> features;
};

// Reads one file after another onto a table.
class TableReader {
 public:
  TableReader(const CsvSource& source, const std::vector<std::string>& names, CsvTable& table)
      : source_(source), wanted_(names.empty() ? source.columns : names), table_(table) {}

  absl::Status ReadFile(std::int32_t file) {
    const std::string& path = table_.files[static_cast<std::size_t>(file)];
    EK_ASSIGN_OR_RETURN(std::string text, ReadDataFile(path));
    CsvRecords records(text, source_.separator[0], path);
    EK_ASSIGN_OR_RETURN(bool more, records.Next());
    if (!more) return absl::DataLossError(absl::StrCat("[csv] ", path, ": no lines"));
    header_.clear();
    for (std::size_t i = 0; i < records.fields().size(); ++i) {
      header_.push_back(source_.header ? std::string(absl::StripAsciiWhitespace(records.fields()[i]))
                                       : absl::StrCat(i));
    }
    EK_RETURN_IF_ERROR(Annotate(Select(), absl::StrCat("csv ", path)));
    if (source_.header) {
      EK_ASSIGN_OR_RETURN(more, records.Next());
    }
    std::int64_t rows = 0;
    for (; more; ++rows) {
      where_ = WhereIn(kFormat, path, "line", records.line());
      EK_RETURN_IF_ERROR(TakeRow(records.fields(), {file, records.line()}));
      EK_ASSIGN_OR_RETURN(more, records.Next());
    }
    if (rows == 0) return absl::DataLossError(absl::StrCat("[csv] ", path, ": a header and no rows"));
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::size_t> IndexOf(const std::string& name, absl::string_view what) const {
    auto found = std::find(header_.begin(), header_.end(), name);
    if (found == header_.end()) {
      return absl::InvalidArgumentError(
          source_.header ? absl::StrCat(what, " '", name, "' is not in the header: ", absl::StrJoin(header_, ", "))
                         : absl::StrCat(what, " '", name, "': without a header columns are numbers from 0 to ",
                                        header_.size() - 1));
    }
    if (std::find(found + 1, header_.end(), name) != header_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(what, " '", name, "' is in the header twice"));
    }
    return static_cast<std::size_t>(found - header_.begin());
  }

  // Resolves the names against this file's header; the first file also names the table's columns.
  absl::Status Select() {
    selection_ = {};
    EK_ASSIGN_OR_RETURN(selection_.label, IndexOf(source_.label, "label"));
    std::vector<std::string> names = wanted_;
    if (names.empty()) {
      for (std::size_t i = 0; i < header_.size(); ++i) {
        if (i != selection_.label) names.push_back(header_[i]);
      }
    }
    if (names.empty()) return absl::InvalidArgumentError("there is no column but the label");
    for (const std::string& name : names) {
      EK_ASSIGN_OR_RETURN(std::size_t index, IndexOf(name, "column"));
      if (index == selection_.label) {
        return absl::InvalidArgumentError(absl::StrCat("column '", name, "' is the label; it can be no feature"));
      }
      selection_.features.push_back(index);
    }
    for (const std::string& name : source_.categorical) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("categorical column '", name, "' is none of the columns: ", absl::StrJoin(names, ", ")));
      }
    }
    if (!table_.columns.empty()) return CheckSameColumns(names);
    for (const std::string& name : names) {
      bool categorical = std::count(source_.categorical.begin(), source_.categorical.end(), name) > 0;
      table_.columns.push_back({name, categorical, {}, {}});
    }
    return absl::OkStatus();
  }

  absl::Status CheckSameColumns(const std::vector<std::string>& names) const {
    bool same = names.size() == table_.columns.size();
    for (std::size_t i = 0; same && i < names.size(); ++i) same = names[i] == table_.columns[i].name;
    if (same) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("columns ", absl::StrJoin(names, ", "), " differ from those of ", table_.files[0]));
  }

  absl::Status TakeRow(const std::vector<std::string>& fields, Place place) {
    if (fields.size() != header_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          where_, ": ", fields.size() < header_.size() ? "too few" : "too many", " columns: ", fields.size(), ", the ",
          source_.header ? "header" : "first line", " has ", header_.size()));
    }
    if (source_.missing == "drop_row" && AnyMissing(fields)) return absl::OkStatus();
    double label = 0;
    EK_ASSIGN_OR_RETURN(label, TakeNumber(fields[selection_.label], selection_.label, /*is_label=*/true));
    for (std::size_t i = 0; i < table_.columns.size(); ++i) {
      std::size_t index = selection_.features[i];
      CsvTable::Column& column = table_.columns[i];
      if (column.categorical) {
        EK_ASSIGN_OR_RETURN(std::string text, TakeCategory(fields[index], index));
        column.texts.push_back(std::move(text));
      } else {
        EK_ASSIGN_OR_RETURN(double number, TakeNumber(fields[index], index, /*is_label=*/false));
        column.numbers.push_back(number);
      }
    }
    table_.labels.push_back(label);
    table_.places.push_back(place);
    return absl::OkStatus();
  }

  bool AnyMissing(const std::vector<std::string>& fields) const {
    auto missing = [&](std::size_t index) { return IsMissing(absl::StripAsciiWhitespace(fields[index])); };
    return missing(selection_.label) || std::any_of(selection_.features.begin(), selection_.features.end(), missing);
  }

  absl::Status Wrong(std::size_t index, absl::string_view cell, absl::string_view message) const {
    return absl::InvalidArgumentError(
        absl::StrCat(where_, ", column '", header_[index], "': ", Quoted(cell), " ", message));
  }

  absl::StatusOr<double> TakeNumber(absl::string_view cell, std::size_t index, bool is_label) const {
    cell = absl::StripAsciiWhitespace(cell);
    if (IsMissing(cell)) {
      if (is_label) return Wrong(index, cell, "is missing; a label must be there (missing: drop_row skips the line)");
      if (source_.missing == "error") {
        return Wrong(index, cell, "is missing; right is a number, or missing: mean, zero or drop_row");
      }
      return kMissing;
    }
    Number number = ParseNumber(cell);
    if (number.kind == NumberKind::kNotFinite) return Wrong(index, cell, "is not finite; right is a finite number");
    if (number.kind == NumberKind::kNotANumber) {
      return Wrong(index, cell, is_label ? "is not a number" : "is not a number; list the column under categorical");
    }
    return number.value;
  }

  absl::StatusOr<std::string> TakeCategory(absl::string_view cell, std::size_t index) const {
    cell = absl::StripAsciiWhitespace(cell);
    if (!IsMissing(cell)) return std::string(cell);
    if (source_.missing == "error") {
      return Wrong(index, cell, "is missing; right is a value, or missing: mean, zero or drop_row");
    }
    return std::string();
  }

  const CsvSource& source_;
  const std::vector<std::string>& wanted_;
  CsvTable& table_;
  std::vector<std::string> header_;  // of the file being read
  Selection selection_;              // likewise
  std::string where_;
};

}  // namespace

void CsvTable::Select(std::span<const std::int64_t> rows) {
  for (Column& column : columns) {
    if (column.categorical) {
      SelectRows(column.texts, 1, rows);
    } else {
      SelectRows(column.numbers, 1, rows);
    }
  }
  SelectRows(labels, 1, rows);
  SelectRows(places, 1, rows);
}

absl::StatusOr<CsvTable> ReadCsv(const CsvSource& source, const std::vector<std::string>& paths,
                                 const std::vector<std::string>& names) {
  if (source.separator.size() != 1 || source.separator == "\"" || source.separator == "\n") {
    return absl::InvalidArgumentError(
        absl::StrCat("[csv] separator ", Quoted(source.separator), " must be one byte, for example ',' or ';'"));
  }
  CsvTable table;
  table.files = paths;
  TableReader reader(source, names, table);
  for (std::size_t f = 0; f < paths.size(); ++f) EK_RETURN_IF_ERROR(reader.ReadFile(static_cast<std::int32_t>(f)));
  if (table.places.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[csv] ", paths[0], ": every row has a missing value and is dropped"));
  }
  return table;
}

absl::Status FitTable(const CsvTable& table, const std::string& missing, Statistics& statistics) {
  for (const CsvTable::Column& column : table.columns) {
    std::set<std::string> values(column.texts.begin(), column.texts.end());
    values.erase("");
    double sum = 0;
    std::int64_t count = 0;
    for (double number : column.numbers) {
      if (std::isnan(number)) continue;
      sum += number;
      ++count;
    }
    if (column.categorical ? values.empty() : (count == 0 && missing == "mean")) {
      return absl::InvalidArgumentError(
          absl::StrCat("[csv] ", table.files[0], ": column '", column.name, "' has no value in any training row"));
    }
    statistics.columns.push_back(column.name);
    statistics.categorical.push_back(column.categorical);
    statistics.categories.emplace_back(values.begin(), values.end());
    statistics.fill.push_back(missing == "mean" && count > 0 ? sum / static_cast<double>(count) : 0);
  }
  return absl::OkStatus();
}

absl::StatusOr<Samples> EncodeTable(CsvTable table, const Statistics& statistics) {
  Samples samples;
  samples.format = std::string(kFormat);
  samples.unit = "line";
  samples.files = std::move(table.files);
  samples.places = std::move(table.places);
  samples.labels = std::move(table.labels);
  samples.content = Content::kDense;
  std::vector<std::int64_t> begins;
  std::int64_t width = 0;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    if (table.columns[c].categorical != statistics.categorical[c]) {
      return absl::InvalidArgumentError(absl::StrCat("[csv] ", samples.files[0], ": column '", table.columns[c].name,
                                                     "' must be categorical here exactly if it is in training"));
    }
    begins.push_back(width);
    std::int64_t columns = statistics.categorical[c] ? static_cast<std::int64_t>(statistics.categories[c].size()) : 1;
    samples.indicator.insert(samples.indicator.end(), static_cast<std::size_t>(columns), statistics.categorical[c]);
    width += columns;
  }
  if (samples.size() > kMaxDenseFloats / width) {
    return absl::InvalidArgumentError(absl::StrCat("[csv] ", samples.files[0], ": ", samples.size(), " rows of ", width,
                                                   " features (one a category) are too many"));
  }
  samples.spec.features = {width};
  samples.values.resize(static_cast<std::size_t>(samples.size() * width));
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const CsvTable::Column& column = table.columns[c];
    const std::vector<std::string>& categories = statistics.categories[c];
    for (std::int64_t row = 0; row < samples.size(); ++row) {
      float* out = samples.values.data() + row * width + begins[c];
      if (!column.categorical) {
        double number = column.numbers[static_cast<std::size_t>(row)];
        *out = static_cast<float>(std::isnan(number) ? statistics.fill[c] : number);
        continue;
      }
      auto found = std::lower_bound(categories.begin(), categories.end(), column.texts[static_cast<std::size_t>(row)]);
      if (found != categories.end() && *found == column.texts[static_cast<std::size_t>(row)]) {
        out[found - categories.begin()] = 1;
      }
    }
  }
  return samples;
}

}  // namespace evenkeel::data
