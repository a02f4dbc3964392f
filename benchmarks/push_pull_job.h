// The job of the push-pull benchmark: a tensor, its optimizer, constant gradients, and what they make of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "bench_process.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/protocol/messages.h"
#include "push_pull_hops.h"

namespace evenkeel::bench {

enum class Operation : std::uint32_t {
  kPush,      // gradients lie on the servers, unsummed; they are dropped there
  kPushPull,  // a whole round
};

struct PushPullJob {
  std::string transport;
  std::int64_t bytes = 0;  // of the gradients, in all servers; a multiple of 64
  std::int64_t bucket_bytes = 0;
  int workers = 1, servers = 1, threads = 1;
  Duration timeout{};
  HopBoard* board = nullptr;  // of worker 0 and server 0; null: nobody wants to know

  TensorSpec Tensor() const;
  OptimizerSpec Optimizer() const;
  // Errors: kInvalidArgument.
  absl::StatusOr<ParameterLayout> Layout() const;
  Incarnation IncarnationOf(int worker) const { return Incarnation(static_cast<std::uint64_t>(10 + worker)); }
  // What is on every message.
  Envelope MakeEnvelope(Incarnation sender) const;
  void FillGradients(int worker, std::span<float> flat) const;
  // Compares parameters with what so many commits make of the first ones. Errors: kInternal names the element.
  absl::Status Check(std::span<const float> flat, std::uint64_t commits) const;
};

constexpr double kLearningRate = 1.0 / 64;
// A closing Stage with this sum of losses: the update is to be dropped once it is complete.
constexpr double kDropMark = -1;

// Processes' bodies. The server tells its address over the line ("+HOST:PORT") once it can serve, and runs until the
// line ends. The worker answers bursts of operations.
absl::Status RunPushPullServer(const PushPullJob& job, int server, Line& line);
absl::Status RunPushPullWorker(const PushPullJob& job, int worker, const std::vector<std::string>& addresses,
                               Line& line);

}  // namespace evenkeel::bench
