// Propagation of absl::Status. What can fail returns absl::Status or absl::StatusOr; a broken invariant aborts.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace evenkeel {

// Prefixes a failed status's message, "[prefix] message", keeping its code. Ok stays ok.
absl::Status Annotate(absl::Status status, std::string_view prefix);

// Exit codes of every process.
enum class ExitCode : int {
  kOk = 0,          // finished, stopped, or an orderly leave
  kFailed = 1,      // failed while running
  kWrongInput = 2,  // command line, files, data
  kRefused = 3,     // another job or spec, a stale incarnation or term
  kDeadline = 4,    // a deadline passed while waiting for somebody
  kInterrupted = 130,
};

// The exit code that a status stands for: kInvalidArgument, kNotFound, kDataLoss, kOutOfRange, kAlreadyExists: wrong
// input; kPermissionDenied, kFailedPrecondition: refused; kDeadlineExceeded, kUnavailable: deadline; else failed.
ExitCode ExitCodeFor(const absl::Status& status);

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression, const std::string& detail);
}  // namespace internal

}  // namespace evenkeel

#define EK_RETURN_IF_ERROR(expression)                                              \
  do {                                                                              \
    if (::absl::Status ek_status = (expression); !ek_status.ok()) return ek_status; \
  } while (false)

#define EK_CONCAT_INNER(a, b) a##b
#define EK_CONCAT(a, b) EK_CONCAT_INNER(a, b)

// EK_ASSIGN_OR_RETURN(auto x, MakeX());
#define EK_ASSIGN_OR_RETURN(target, expression) \
  EK_ASSIGN_OR_RETURN_INNER(EK_CONCAT(ek_or_, __LINE__), target, expression)
#define EK_ASSIGN_OR_RETURN_INNER(holder, target, expression) \
  auto holder = (expression);                                 \
  if (!holder.ok()) return std::move(holder).status();        \
  target = *std::move(holder)

// Aborts with file, line and the expression: for broken invariants only, never for input.
#define EK_CHECK(condition)                                                                  \
  do {                                                                                       \
    if (!(condition)) ::evenkeel::internal::CheckFailed(__FILE__, __LINE__, #condition, ""); \
  } while (false)
#define EK_CHECK_MSG(condition, detail)                                                          \
  do {                                                                                           \
    if (!(condition)) ::evenkeel::internal::CheckFailed(__FILE__, __LINE__, #condition, detail); \
  } while (false)
