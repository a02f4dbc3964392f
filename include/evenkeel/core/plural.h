// Numbers with what they count, for people.
#pragma once

#include <cstdint>
#include <string>

namespace evenkeel {

// "1 server", "3 servers". For nouns whose plural takes an s.
inline std::string Counted(std::uint64_t count, const char* noun) {
  return std::to_string(count) + ' ' + noun + (count == 1 ? "" : "s");
}

}  // namespace evenkeel
