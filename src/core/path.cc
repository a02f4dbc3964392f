#include "evenkeel/core/storage.h"

namespace evenkeel {

std::string JoinPath(std::string_view folder, std::string_view name) {
  if (folder.empty() || name.starts_with('/')) return std::string(name);
  std::string path(folder);
  if (name.empty()) return path;
  if (!path.ends_with('/')) path += '/';
  path += name;
  return path;
}

}  // namespace evenkeel
