// The control groups that this process is in, and their limits' files.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace evenkeel::internal {

// The folder of this process in a line of /proc/self/cgroup: v2 for controller "", else v1. "" when there is none.
absl::string_view CgroupFolder(absl::string_view proc_self_cgroup, absl::string_view controller);

// A small file's text; "" when it cannot be read.
std::string ReadText(const std::string& path);

// Calls `visit` with each of a controller's folders that bounds this process, from its own up to the root: version 1's
// named "cpu" or "memory", version 2's named "". Inside a container its own may not be visible, and the root then holds
// the limit.
void VisitCgroups(absl::string_view controller, const std::function<void(const std::string& folder)>& visit);

}  // namespace evenkeel::internal
