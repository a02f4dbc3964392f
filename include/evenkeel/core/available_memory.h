// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace evenkeel {

// Bytes: the least of what the machine has available (MemAvailable of /proc/meminfo) and what each control group around
// this process leaves of its limit, file caches that the kernel would give up not counted as used. Other processes may
// take it first. 0 where nothing is left, or nothing can be read. Takes some tens of microseconds. Thread-safe.
std::int64_t AvailableMemory();

}  // namespace evenkeel
