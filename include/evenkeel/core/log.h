// One line of log on standard error: time, level, process name, message. State changes log one line; loops log none.
//
// Threading: thread-safe. Messages are built with absl::StrCat or absl::StrFormat.
#pragma once

#include <string>
#include <string_view>

namespace evenkeel {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// `process` is written on each line, for example "worker:1". Call once in main().
void InitLog(std::string_view process, LogLevel level);
void Log(LogLevel level, std::string_view message);
inline void LogDebug(std::string_view message) { Log(LogLevel::kDebug, message); }
inline void LogInfo(std::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(std::string_view message) { Log(LogLevel::kWarning, message); }
inline void LogError(std::string_view message) { Log(LogLevel::kError, message); }

}  // namespace evenkeel
