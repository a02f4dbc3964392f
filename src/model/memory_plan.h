// Which memory holds which activation, gradient and scratch, so that a training step needs as little as its liveness
// allows and nothing is allocated while training.
//
// Time runs in ticks: the input is there at 0, node i runs forward at i + 1, the loss at n + 1, and node i backward at
// 2n + 1 - i. A buffer lives from its first tick through its last; buffers that share a tick never overlap.
// Threading: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/graph.h"

namespace evenkeel {

struct PlannedBuffer {
  // Elements of the backend's dtype; the size is per_sample * batch + fixed, and `bytes` more.
  std::int64_t per_sample = 0;
  std::int64_t fixed = 0;
  std::size_t bytes = 0;
  int first = 0;
  int last = 0;
};

// Where a node's backward pass writes one input's gradient, and where that is then added to.
struct GradientRoute {
  int written = -1;           // a buffer, or -1: not wanted
  int accumulated_into = -1;  // a buffer, or -1: the first contribution stays where it was written
};

struct MemoryPlan {
  std::vector<PlannedBuffer> buffers;
  std::vector<int> value_buffers;                  // by value; -1 for a sparse input
  std::vector<int> gradient_buffers;               // by value; -1 where there is no gradient
  std::vector<std::vector<GradientRoute>> routes;  // by node and input
  std::vector<int> saved_buffers;                  // by node; -1 for none
  std::vector<int> workspace_buffers;              // by node; `bytes` is filled in for each batch
  int labels = -1;
  int losses = -1;
};

MemoryPlan PlanMemory(const Graph& graph, bool sparse, std::int64_t label_width);

// Offsets in bytes of buffers of `sizes`, each aligned to 64 bytes, and the total: largest first, each at the lowest
// place where it meets no other that is alive at the same time.
struct Placement {
  std::vector<std::size_t> offsets;
  std::size_t total = 0;
};
Placement PlaceBuffers(const std::vector<PlannedBuffer>& buffers, const std::vector<std::size_t>& sizes);

}  // namespace evenkeel
