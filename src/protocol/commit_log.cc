#include "evenkeel/protocol/commit_log.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

constexpr char kPrefix[] = "chief.wal.";
constexpr std::uint64_t kMaxFirstRecordBytes = 1 << 24;

}  // namespace

std::string LogFileName(Term term, std::uint64_t segment) {
  const std::string name = absl::StrCat(kPrefix, term.value());
  return segment == 0 ? name : absl::StrCat(name, ".", segment);
}

absl::StatusOr<LogRecord> ReadFirstRecord(const Storage& storage, const std::string& model_dir, const LogFile& file) {
  const std::string path = JoinPath(model_dir, file.name);
  EK_ASSIGN_OR_RETURN(const std::uint64_t size, storage.Size(path));
  std::string head(static_cast<std::size_t>(std::min(size, kMaxFirstRecordBytes)), '\0');
  EK_RETURN_IF_ERROR(storage.ReadAt(path, 0, std::as_writable_bytes(std::span(head))));
  return DecodeFirstRecord(AsBytes(head));
}

absl::StatusOr<std::vector<LogFile>> ListLogFiles(const Storage& storage, const std::string& model_dir) {
  EK_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(model_dir));
  std::vector<LogFile> files;
  for (const std::string& name : names) {
    absl::string_view numbers = name;
    if (!absl::ConsumePrefix(&numbers, kPrefix)) continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(numbers, absl::MaxSplits('.', 1));
    std::uint64_t term = 0, segment = 0;
    if (!absl::SimpleAtoi(parts.first, &term)) continue;
    if (numbers.size() > parts.first.size() && !absl::SimpleAtoi(parts.second, &segment)) continue;
    files.push_back(LogFile{Term(term), segment, name});
  }
  std::sort(files.begin(), files.end(), [](const LogFile& a, const LogFile& b) {
    return std::tie(a.term, a.segment, a.name) < std::tie(b.term, b.segment, b.name);
  });
  return files;
}

absl::Status ReadLog(const Storage& storage, const std::string& model_dir,
                     const std::function<absl::Status(const LogFile&, LogRecord)>& visit) {
  EK_ASSIGN_OR_RETURN(const std::vector<LogFile> files, ListLogFiles(storage, model_dir));
  return ReadLogFiles(storage, model_dir, files, visit);
}

absl::Status ReadLogFiles(const Storage& storage, const std::string& model_dir, std::span<const LogFile> files,
                          const std::function<absl::Status(const LogFile&, LogRecord)>& visit) {
  for (const LogFile& file : files) {
    const std::string path = JoinPath(model_dir, file.name);
    EK_ASSIGN_OR_RETURN(const std::string bytes, storage.Read(path));
    auto decoded = DecodeLog(AsBytes(bytes));
    if (!decoded.ok()) return Annotate(decoded.status(), path);
    if (decoded->valid_bytes < bytes.size()) {
      LogInfo(absl::StrCat(path, ": cut a torn record of ", bytes.size() - decoded->valid_bytes, " bytes at its end"));
    }
    for (LogRecord& record : decoded->records) EK_RETURN_IF_ERROR(visit(file, std::move(record)));
  }
  return absl::OkStatus();
}

}  // namespace evenkeel
