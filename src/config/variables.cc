// ${VAR} in paths.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "config/concat.h"
#include "evenkeel/config/experiment.h"
#include "evenkeel/core/status.h"
#include "evenkeel/core/storage.h"

namespace evenkeel {
namespace {

using config_internal::Concat;

constexpr std::string_view kDataVariable = "EVENKEEL_DATA";
constexpr std::string_view kFashionVariable = "FASHION_MNIST";
constexpr std::string_view kDebianFashion = "/usr/share/datasets/fashion-mnist";

std::string Environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? "" : value;
}

bool IsName(std::string_view name) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  for (const char c : name) {
    if (c != '_' && !absl::ascii_isalnum(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

absl::StatusOr<std::string> Lookup(std::string_view name, std::string_view data_folder) {
  const std::string data = data_folder.empty() ? Environment(kDataVariable) : std::string(data_folder);
  std::string value = name == kDataVariable ? data : Environment(name);
  if (value.empty() && name == kFashionVariable) {
    const std::string folder = data.empty() ? "" : JoinPath(data, "fashion-mnist");
    std::error_code ignored;
    value = !folder.empty() && std::filesystem::is_directory(folder, ignored) ? folder : std::string(kDebianFashion);
  }
  if (!value.empty()) return value;
  return absl::InvalidArgumentError(
      Concat("the environment variable ", name, " is not set",
             name == kDataVariable ? "; set it, or --data, to the folder that holds the data sets" : ""));
}

}  // namespace

absl::StatusOr<std::string> ExpandVariables(std::string_view text, std::string_view data_folder) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = text.find("${", at);
    out += text.substr(at, start == text.npos ? text.npos : start - at);
    if (start == text.npos) break;
    const std::size_t end = text.find('}', start);
    const std::string_view name = end == text.npos ? std::string_view() : text.substr(start + 2, end - start - 2);
    if (!IsName(name)) {
      return absl::InvalidArgumentError(Concat("'", text, "': '${' is not followed by a variable's name and '}'"));
    }
    EK_ASSIGN_OR_RETURN(const std::string value, Lookup(name, data_folder));
    out += value;
    at = end + 1;
  }
  return out;
}

}  // namespace evenkeel
