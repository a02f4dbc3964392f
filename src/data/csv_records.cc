#include "data/csv_records.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "data/samples.h"
#include "data/text.h"
#include "evenkeel/core/status.h"

namespace evenkeel::data {

CsvRecords::CsvRecords(absl::string_view text, char separator, const std::string& path)
    : text_(text), separator_(separator), path_(path) {
  absl::ConsumePrefix(&text_, "\xef\xbb\xbf");  // a byte order mark is no part of the first name
}

absl::StatusOr<bool> CsvRecords::Next() {
  while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) next_line_ += text_[at_++] == '\n';
  if (at_ >= text_.size()) return false;
  fields_.clear();
  line_ = next_line_;
  for (;;) {
    if (at_ < text_.size() && text_[at_] == '"') {
      EK_RETURN_IF_ERROR(TakeQuoted());
    } else {
      TakePlain();
    }
    if (at_ == text_.size()) return true;
    char ended_by = text_[at_++];
    if (ended_by == separator_) continue;
    if (ended_by == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
    ++next_line_;
    return true;
  }
}

absl::Status CsvRecords::TakeQuoted() {
  std::int64_t opened = next_line_;
  std::string field;
  std::size_t begin = ++at_;
  for (;;) {
    std::size_t quote = text_.find('"', at_);
    if (quote == absl::string_view::npos) {
      return absl::DataLossError(absl::StrCat(WhereIn("csv", path_, "line", opened),
                                              ": a quote opens here and never closes; the file may be truncated"));
    }
    absl::string_view piece = text_.substr(begin, quote - begin);
    next_line_ += std::count(piece.begin(), piece.end(), '\n');
    field.append(piece.data(), piece.size());
    at_ = begin = quote + 1;
    if (at_ == text_.size() || text_[at_] != '"') break;
    field.push_back('"');  // a doubled quote stands for one
    begin = ++at_;
  }
  bool ended = at_ == text_.size() || text_[at_] == separator_ || text_[at_] == '\n' || text_[at_] == '\r';
  if (!ended) {
    return absl::InvalidArgumentError(absl::StrCat(WhereIn("csv", path_, "line", next_line_), ": ",
                                                   Quoted(text_.substr(at_, 10)), " after the closing quote of ",
                                                   Quoted(field), "; a quote inside quotes is doubled"));
  }
  fields_.push_back(std::move(field));
  return absl::OkStatus();
}

void CsvRecords::TakePlain() {
  std::size_t end = at_;
  while (end < text_.size() && text_[end] != separator_ && text_[end] != '\n' && text_[end] != '\r') ++end;
  fields_.emplace_back(text_.substr(at_, end - at_));
  at_ = end;
}

}  // namespace evenkeel::data
