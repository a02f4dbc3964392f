#include "core/cgroups.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_split.h"

namespace evenkeel::internal {

absl::string_view CgroupFolder(absl::string_view proc_self_cgroup, absl::string_view controller) {
  // Lines are "id:controller,controller:/folder"; version 2 has the one line "0::/folder".
  for (absl::string_view line : absl::StrSplit(proc_self_cgroup, '\n')) {
    std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (controller.empty()) {
      if (fields[1].empty()) return fields[2];
      continue;
    }
    for (absl::string_view name : absl::StrSplit(fields[1], ',')) {
      if (name == controller) return fields[2];
    }
  }
  return {};
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? text.str() : "";
}

void VisitCgroups(absl::string_view controller, const std::function<void(const std::string& folder)>& visit) {
  const std::string groups = ReadText("/proc/self/cgroup");
  std::vector<std::string> roots = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
  if (controller == "cpu") roots = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
  if (controller == "memory") roots = {"/sys/fs/cgroup/memory"};
  for (const std::string& root : roots) {
    std::string folder(CgroupFolder(groups, controller));
    for (;;) {
      visit(root + folder);
      if (folder.empty()) break;
      folder.resize(std::min(folder.rfind('/'), folder.size() - 1));
    }
  }
}

}  // namespace evenkeel::internal
