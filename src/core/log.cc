#include "evenkeel/core/log.h"

#include <memory>
#include <mutex>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace evenkeel {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::string EscapePercent(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '%') escaped += '%';
    escaped += c;
  }
  return escaped;
}

std::shared_ptr<spdlog::logger> MakeLogger(std::string_view process, LogLevel level) {
  // spdlog's own types are shared; the sink locks, and writes whole lines.
  auto logger = std::make_shared<spdlog::logger>("evenkeel", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  std::string name = process.empty() ? "" : EscapePercent(process) + " ";
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + name + "%v");
  logger->set_level(ToSpdlog(level));
  logger->flush_on(spdlog::level::debug);
  return logger;
}

// Never destroyed: threads may log while the process exits.
struct Logger {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> logger = MakeLogger("", LogLevel::kInfo);
};

Logger& Global() {
  static Logger* global = new Logger();
  return *global;
}

std::shared_ptr<spdlog::logger> Current() {
  Logger& global = Global();
  std::lock_guard<std::mutex> lock(global.mutex);
  return global.logger;
}

}  // namespace

void InitLog(std::string_view process, LogLevel level) {
  std::shared_ptr<spdlog::logger> logger = MakeLogger(process, level);
  Logger& global = Global();
  std::lock_guard<std::mutex> lock(global.mutex);
  global.logger = std::move(logger);
}

void Log(LogLevel level, std::string_view message) {
  // The message is an argument, never a format: it may hold braces.
  Current()->log(ToSpdlog(level), "{}", message);
}

}  // namespace evenkeel
