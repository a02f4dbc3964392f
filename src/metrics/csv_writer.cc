#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/log.h"
#include "evenkeel/core/status.h"
#include "evenkeel/metrics/sinks.h"

namespace evenkeel {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr int kMaxNamesTried = 1000;

std::string Quoted(const std::string& field) {
  if (field.find_first_of(",\"\r\n") == std::string::npos) return field;
  std::string quoted = "\"";
  for (char c : field) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  quoted += '"';
  return quoted;
}

std::string Line(const std::vector<std::string>& fields) {
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) absl::StrAppend(&line, i == 0 ? "" : ",", Quoted(fields[i]));
  line += '\n';
  return line;
}

bool IsAfter(const std::string& first_field, std::int64_t resume_after) {
  std::int64_t value = 0;
  const char* end = first_field.data() + first_field.size();
  auto [stop, error] = std::from_chars(first_field.data(), end, value);
  return error == std::errc() && stop == end && value > resume_after;
}

// What of an existing file a resumed job keeps.
struct Existing {
  bool same_header = false;
  std::uint64_t keep_bytes = 0;
  std::uint64_t last_row_at = 0;  // where it begins; keep_bytes: there is none
};

// Reads the file once, in chunks. Rows are written in ascending order of their first column, so all behind the first
// one that is beyond `resume_after` go. A last row without its line end was cut short by a crash, and goes too.
absl::StatusOr<Existing> Scan(const Storage& storage, const std::string& path, const std::string& header,
                              std::optional<std::int64_t> resume_after) {
  EK_ASSIGN_OR_RETURN(const std::uint64_t size, storage.Size(path));
  Existing existing;
  if (size < header.size()) {
    // A crash may have cut the header itself.
    std::string start(size, '\0');
    EK_RETURN_IF_ERROR(storage.ReadAt(path, 0, std::as_writable_bytes(std::span<char>(start))));
    existing.same_header = header.starts_with(start);
    return existing;
  }
  std::string start(header.size(), '\0');
  EK_RETURN_IF_ERROR(storage.ReadAt(path, 0, std::as_writable_bytes(std::span<char>(start))));
  if (start != header) return existing;
  existing.same_header = true;
  existing.keep_bytes = existing.last_row_at = header.size();

  std::string chunk;
  std::string first_field;
  bool in_quotes = false;
  bool in_first_field = true;
  for (std::uint64_t offset = header.size(); offset < size;) {
    chunk.resize(static_cast<std::size_t>(std::min<std::uint64_t>(size - offset, kChunkBytes)));
    EK_RETURN_IF_ERROR(storage.ReadAt(path, offset, std::as_writable_bytes(std::span<char>(chunk))));
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const char c = chunk[i];
      if (c == '"') in_quotes = !in_quotes;
      if (in_quotes || (c != ',' && c != '\n')) {
        if (in_first_field && first_field.size() < 32) first_field += c;
        continue;
      }
      in_first_field = false;
      if (c == ',') continue;
      if (resume_after.has_value() && IsAfter(first_field, *resume_after)) return existing;
      existing.last_row_at = existing.keep_bytes;
      existing.keep_bytes = offset + i + 1;
      first_field.clear();
      in_first_field = true;
    }
    offset += chunk.size();
  }
  return existing;
}

// A file with other columns is kept under the next free name PATH.1, PATH.2 ...
absl::Status MoveAside(Storage& storage, const std::string& path) {
  for (int i = 1; i <= kMaxNamesTried; ++i) {
    const std::string aside = absl::StrCat(path, ".", i);
    if (storage.Exists(aside)) continue;
    LogWarning(absl::StrCat("[csv] ", path, " has other columns; it is now ", aside));
    return storage.Rename(path, aside);
  }
  return absl::AlreadyExistsError(absl::StrCat("[csv] ", path, " has other columns, and ", kMaxNamesTried,
                                               " files beside it are older ones; move them away"));
}

}  // namespace

struct CsvWriter::State {
  std::string path;
  std::size_t columns = 0;
  std::unique_ptr<WritableFile> file;
  std::string buffer;
  std::string last_row;
  // The first failure; a row that was written in part must not be continued.
  absl::Status failed;

  absl::Status Drain() {
    if (!failed.ok()) return failed;
    if (buffer.empty()) return absl::OkStatus();
    failed = file->Append(AsBytes(buffer));
    buffer.clear();
    return failed;
  }
};

CsvWriter::CsvWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}

CsvWriter::~CsvWriter() {
  // The last rows reach the file if they can; whoever must know calls Flush.
  state_->Drain().IgnoreError();
}

absl::StatusOr<std::unique_ptr<CsvWriter>> CsvWriter::Open(Storage& storage, const std::string& path,
                                                           const std::vector<std::string>& header,
                                                           std::optional<std::int64_t> resume_after) {
  if (header.empty()) return absl::InvalidArgumentError(absl::StrCat("[csv] ", path, ": a header without columns"));
  auto state = std::make_unique<State>();
  state->path = path;
  state->columns = header.size();
  const std::string header_line = Line(header);
  std::uint64_t kept = 0;
  if (storage.Exists(path)) {
    EK_ASSIGN_OR_RETURN(Existing existing, Scan(storage, path, header_line, resume_after));
    if (existing.same_header) {
      kept = existing.keep_bytes;
      if (existing.last_row_at > 0 && existing.last_row_at < kept) {
        state->last_row.resize(static_cast<std::size_t>(kept - existing.last_row_at - 1));
        EK_RETURN_IF_ERROR(
            storage.ReadAt(path, existing.last_row_at, std::as_writable_bytes(std::span<char>(state->last_row))));
      }
      EK_RETURN_IF_ERROR(storage.Truncate(path, kept));
    } else {
      EK_RETURN_IF_ERROR(MoveAside(storage, path));
    }
  }
  EK_ASSIGN_OR_RETURN(state->file, storage.Open(path, Storage::Create::kAppend));
  if (kept == 0) state->buffer = header_line;
  EK_RETURN_IF_ERROR(state->Drain());
  return std::unique_ptr<CsvWriter>(new CsvWriter(std::move(state)));
}

const std::string& CsvWriter::last_row() const { return state_->last_row; }

absl::Status CsvWriter::Write(const std::vector<std::string>& row) {
  if (row.size() != state_->columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("[csv] ", state_->path, ": a row of ", row.size(), " fields, the header has ", state_->columns));
  }
  EK_RETURN_IF_ERROR(state_->failed);
  state_->buffer += Line(row);
  return state_->buffer.size() >= kBufferBytes ? state_->Drain() : absl::OkStatus();
}

absl::Status CsvWriter::Flush() {
  EK_RETURN_IF_ERROR(state_->Drain());
  return state_->file->Sync();
}

}  // namespace evenkeel
