#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "data/files.h"
#include "data/readers.h"
#include "data/text.h"
#include "evenkeel/core/status.h"

namespace evenkeel::data {
namespace {

constexpr absl::string_view kFormat = "svmlight";

// Takes the next token; empty at the end.
absl::string_view NextToken(absl::string_view* rest) {
  std::size_t begin = rest->find_first_not_of(" \t");
  if (begin == absl::string_view::npos) return {};
  std::size_t end = std::min(rest->find_first_of(" \t", begin), rest->size());
  absl::string_view token = rest->substr(begin, end - begin);
  rest->remove_prefix(end);
  return token;
}

// Parses one line's "label [qid:n] index:value ..." onto the samples.
class RowParser {
 public:
  RowParser(const SvmlightSource& source, Samples& samples) : source_(source), samples_(samples) {}

  absl::Status Parse(absl::string_view line, std::string where) {
    where_ = std::move(where);
    absl::string_view label = NextToken(&line);
    Number number = ParseNumber(label);
    if (number.kind != NumberKind::kFinite) {
      return Wrong(absl::StrCat("label ", Quoted(label), " is not a finite number"));
    }
    samples_.labels.push_back(number.value);
    std::int64_t previous = -1;
    for (absl::string_view token = NextToken(&line); !token.empty(); token = NextToken(&line)) {
      if (absl::StartsWith(token, "qid:")) continue;
      EK_RETURN_IF_ERROR(ParseEntry(token, &previous));
    }
    samples_.row_offsets.push_back(static_cast<std::int64_t>(samples_.columns.size()));
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, ": ", message));
  }

  absl::Status ParseEntry(absl::string_view token, std::int64_t* previous) {
    std::size_t colon = token.find(':');
    std::int64_t index = 0;
    if (colon == absl::string_view::npos || !ParseIndex(token.substr(0, colon), &index)) {
      return Wrong(
          absl::StrCat(Quoted(token), " is not index:value, with an index of at least ", source_.zero_based ? 0 : 1));
    }
    std::int64_t column = source_.zero_based ? index : index - 1;
    if (column < 0) return Wrong("index 0, but indices count from 1; zero_based true counts from 0");
    if (column >= std::numeric_limits<std::int32_t>::max() || (source_.features > 0 && column >= source_.features)) {
      return Wrong(absl::StrCat("index ", index, " is beyond the ", source_.features > 0 ? source_.features : INT32_MAX,
                                " features"));
    }
    if (column <= *previous) {
      return Wrong(absl::StrCat("index ", index, " comes after ", *previous + (source_.zero_based ? 0 : 1),
                                "; indices must ascend"));
    }
    *previous = column;
    absl::string_view text = token.substr(colon + 1);
    Number number = ParseNumber(text);
    if (number.kind != NumberKind::kFinite) {
      return Wrong(absl::StrCat("value ", Quoted(text), " of index ", index, " is not a finite number"));
    }
    if (number.value == 0) return absl::OkStatus();
    samples_.columns.push_back(static_cast<std::int32_t>(column));
    samples_.values.push_back(static_cast<float>(number.value));
    return absl::OkStatus();
  }

  const SvmlightSource& source_;
  Samples& samples_;
  std::string where_;
};

}  // namespace

absl::StatusOr<Samples> ReadSvmlight(const SvmlightSource& source, const std::vector<std::string>& paths) {
  Samples samples;
  samples.format = std::string(kFormat);
  samples.unit = "line";
  samples.files = paths;
  samples.content = Content::kSparse;
  samples.row_offsets = {0};
  RowParser parser(source, samples);
  for (std::size_t f = 0; f < paths.size(); ++f) {
    EK_ASSIGN_OR_RETURN(std::string file, ReadDataFile(paths[f]));
    std::int64_t before = samples.size();
    LineReader lines(file);
    for (absl::string_view line; lines.Next(&line);) {
      line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
      if (line.empty()) continue;
      EK_RETURN_IF_ERROR(parser.Parse(line, WhereIn(kFormat, paths[f], "line", lines.line_number())));
      samples.places.push_back({static_cast<std::int32_t>(f), lines.line_number()});
    }
    if (samples.size() == before) {
      return absl::DataLossError(absl::StrCat("[svmlight] ", paths[f], ": no rows; it must hold at least one"));
    }
  }
  samples.spec.sparse = true;
  samples.spec.features = {source.features > 0 ? source.features : CountColumns(samples)};
  return samples;
}

std::int64_t CountColumns(const Samples& samples) {
  std::int32_t largest = 0;
  for (std::int32_t column : samples.columns) largest = std::max(largest, column);
  return std::int64_t{largest} + 1;
}

void FitColumns(std::int64_t columns, Samples& samples) {
  samples.spec.features = {columns};
  std::size_t to = 0;
  std::int64_t begin = 0;
  for (std::size_t row = 0; row + 1 < samples.row_offsets.size(); ++row) {
    std::int64_t end = samples.row_offsets[row + 1];
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      if (samples.columns[i] >= columns) break;  // ascending: so are the rest of the row
      samples.columns[to] = samples.columns[i];
      samples.values[to++] = samples.values[i];
    }
    begin = end;
    samples.row_offsets[row + 1] = static_cast<std::int64_t>(to);
  }
  samples.columns.resize(to);
  samples.values.resize(to);
}

absl::Status ToDense(Samples& samples) {
  std::int64_t width = samples.spec.features.elements();
  if (samples.size() > kMaxDenseFloats / width) {
    return absl::InvalidArgumentError(absl::StrCat("[svmlight] ", samples.files[0], ": ", samples.size(), " rows of ",
                                                   width,
                                                   " features are too many to lay out densely; set input.sparse"));
  }
  std::vector<float> dense(static_cast<std::size_t>(samples.size() * width));
  for (std::int64_t row = 0; row < samples.size(); ++row) {
    for (std::int64_t i = samples.row_offsets[row]; i < samples.row_offsets[row + 1]; ++i) {
      dense[row * width + samples.columns[i]] = samples.values[i];
    }
  }
  samples.values = std::move(dense);
  samples.row_offsets.clear();
  samples.columns.clear();
  samples.content = Content::kDense;
  samples.spec.sparse = false;
  return absl::OkStatus();
}

}  // namespace evenkeel::data
