// The roles of a cluster's processes.
#pragma once

#include <cstdint>

namespace evenkeel {

enum class Role : std::uint8_t { kChief, kPs, kWorker, kEvaluator };

constexpr const char* ToString(Role role) {
  switch (role) {
    case Role::kChief:
      return "chief";
    case Role::kPs:
      return "ps";
    case Role::kWorker:
      return "worker";
    case Role::kEvaluator:
      return "evaluator";
  }
  return "unknown";
}

}  // namespace evenkeel
