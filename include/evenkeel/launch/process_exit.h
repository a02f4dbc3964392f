// How a process ended.
#pragma once

#include <string>

namespace evenkeel {

struct ProcessExit {
  bool signalled = false;
  int value = 0;  // the exit code, or the signal
  bool ok() const { return !signalled && value == 0; }
  std::string ToString() const;  // "exit code 2", "signal 9 (Killed)"
  friend bool operator==(const ProcessExit&, const ProcessExit&) = default;
};

}  // namespace evenkeel
