#include "evenkeel/core/background.h"

#include <dirent.h>
#include <sched.h>

#include <cstdlib>

namespace evenkeel {

void RunInBackground() {
  const sched_param none{};
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return;
  // Threads that start meanwhile inherit it from those that start them, but for those that have not been reached.
  while (const dirent* task = readdir(tasks)) {
    const int thread = std::atoi(task->d_name);  // 0 for "." and ".."
    if (thread > 0) (void)sched_setscheduler(thread, SCHED_IDLE, &none);
  }
  closedir(tasks);
}

}  // namespace evenkeel
