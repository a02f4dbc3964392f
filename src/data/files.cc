#include "data/files.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "data/known_sets.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"

namespace evenkeel::data {
namespace {

constexpr absl::string_view kDataVariable = "${EVENKEEL_DATA}/";
// Where Debian's dataset-* packages install.
constexpr absl::string_view kPackageFolder = "/usr/share/datasets/";

bool IsGzip(absl::string_view bytes) { return absl::StartsWith(bytes, "\x1f\x8b"); }

// Ends an inflate stream however the function is left.
class Inflater {
 public:
  // 15 + 16: the largest window, gzip framing only.
  Inflater() : ok_(inflateInit2(&stream_, 15 + 16) == Z_OK) {}
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (ok_) inflateEnd(&stream_);
  }
  bool ok() const { return ok_; }
  z_stream& stream() { return stream_; }

 private:
  z_stream stream_{};
  bool ok_;
};

// Room to begin with. A file of one member says in its last four bytes what it inflates to (RFC 1952, 2.3.1): taken
// where it is likely, with a byte more, so that the end shows. A guess else.
std::size_t FirstRoom(absl::string_view compressed) {
  std::size_t said = 0;
  for (std::size_t i = 1; i <= std::min<std::size_t>(4, compressed.size()); ++i) {
    said = said << 8 | static_cast<unsigned char>(compressed[compressed.size() - i]);
  }
  const std::size_t guess = said <= 16 * compressed.size() ? said + 1 : 4 * compressed.size();
  return std::max<std::size_t>({guess, compressed.size(), 1 << 16});
}

// All members of a gzip file, one after another (RFC 1952, 2.2).
absl::StatusOr<std::string> Inflate(const std::string& path, absl::string_view compressed) {
  Inflater inflater;
  if (!inflater.ok()) return absl::ResourceExhaustedError(absl::StrCat("[gzip] ", path, ": no memory to inflate"));
  z_stream& stream = inflater.stream();
  std::string out;
  out.resize(FirstRoom(compressed));
  std::size_t produced = 0;
  std::size_t consumed = 0;
  for (;;) {
    if (produced == out.size()) out.resize(out.size() * 2);
    constexpr std::size_t kChunk = std::numeric_limits<uInt>::max();
    auto in_size = static_cast<uInt>(std::min(compressed.size() - consumed, kChunk));
    auto out_size = static_cast<uInt>(std::min(out.size() - produced, kChunk));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data() + consumed));
    stream.avail_in = in_size;
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + produced);
    stream.avail_out = out_size;
    int result = inflate(&stream, Z_NO_FLUSH);
    consumed += in_size - stream.avail_in;
    produced += out_size - stream.avail_out;
    if (produced > kMaxFileBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("[gzip] ", path, ": inflates to more than ", kMaxFileBytes, " bytes"));
    }
    if (result == Z_STREAM_END) {
      if (consumed == compressed.size()) break;
      if (!IsGzip(compressed.substr(consumed))) {
        return absl::DataLossError(absl::StrCat("[gzip] ", path, ": ", compressed.size() - consumed,
                                                " bytes after the end that are no gzip member"));
      }
      inflateReset(&stream);
      continue;
    }
    if (result != Z_OK && result != Z_BUF_ERROR) {
      return absl::DataLossError(absl::StrCat("[gzip] ", path, ": damaged near byte ", consumed, " of ",
                                              compressed.size(), ": ", stream.msg != nullptr ? stream.msg : "?"));
    }
    if (consumed == compressed.size() && stream.avail_out != 0) {
      return absl::DataLossError(absl::StrCat("[gzip] ", path, ": truncated: the file ends after ", compressed.size(),
                                              " bytes, in the middle of the compressed data"));
    }
  }
  out.resize(produced);
  return out;
}

}  // namespace

absl::StatusOr<std::string> ReadDataFile(const std::string& path) {
  EK_ASSIGN_OR_RETURN(std::string bytes, Storage::Posix().Read(path, kMaxFileBytes));
  if (!IsGzip(bytes)) return bytes;
  return Inflate(path, bytes);
}

absl::StatusOr<ResolvedFile> ResolveFile(const std::string& text, const std::string& data_folder) {
  std::vector<std::string> candidates;
  absl::StatusOr<std::string> expanded = ExpandVariables(text, data_folder);
  if (expanded.ok()) candidates.push_back(*expanded);
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kDataVariable)) {
    candidates.push_back(absl::StrCat(kPackageFolder, rest));
  } else if (absl::ConsumePrefix(&rest, kPackageFolder)) {
    absl::StatusOr<std::string> in_data = ExpandVariables(absl::StrCat(kDataVariable, rest), data_folder);
    if (in_data.ok()) candidates.push_back(*in_data);
  }
  for (const std::string& candidate : candidates) {
    if (Storage::Posix().Exists(candidate)) return ResolvedFile{candidate, true};
  }
  if (!expanded.ok()) return std::move(expanded).status();
  return ResolvedFile{*expanded, false};
}

absl::StatusOr<std::vector<std::string>> ResolveFiles(const std::vector<std::string>& texts,
                                                      const std::string& data_folder) {
  if (texts.empty()) return absl::InvalidArgumentError("[data] the source lists no file; it needs at least one");
  std::vector<std::string> paths;
  for (const std::string& text : texts) {
    absl::StatusOr<ResolvedFile> file = ResolveFile(text, data_folder);
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          absl::StrCat("[data] ", text, ": ", file.status().message(), "; ", OriginOf(text)));
    }
    if (!file->exists) {
      return absl::NotFoundError(absl::StrCat("[data] ", file->path, ": no such file; ", OriginOf(file->path)));
    }
    paths.push_back(file->path);
  }
  return paths;
}

}  // namespace evenkeel::data
