// The yardstick: the same bytes over plain TCP sockets on loopback, in large blocks, without framing, sums or barriers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "bench_process.h"

namespace evenkeel::bench {

// A process's body: listens, tells its port over the line ("+PORT"), answers until the line ends.
absl::Status ServeRawTcp(Line& line, Duration timeout);

struct RawExchange {
  std::int64_t push = 0;  // bytes there
  std::int64_t pull = 0;  // bytes back; 0: one byte that says that all has come
};

// A process's body: a connection to each of `connections`, over which each round's bytes are spread evenly. Answers
// bursts; an operation is an index into `exchanges`.
absl::Status RunRawTcpClient(Line& line, int port, int connections, std::vector<RawExchange> exchanges,
                             Duration timeout);

}  // namespace evenkeel::bench
