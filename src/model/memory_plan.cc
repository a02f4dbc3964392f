#include "model/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

using Sharing = LayerPlan::Sharing;

constexpr std::size_t kAlignment = 64;

std::size_t At(int index) { return static_cast<std::size_t>(index); }

class Planner {
 public:
  Planner(const Graph& graph, bool sparse) : graph_(graph), sparse_(sparse), n_(static_cast<int>(graph.nodes.size())) {
    consumers_.resize(graph.values.size());
    for (int i = 0; i < n_; ++i) {
      for (ValueId input : graph.nodes[At(i)].inputs) consumers_[At(input)].push_back(i);
    }
  }

  MemoryPlan Plan(std::int64_t label_width) && {
    PlanValues();
    PlanScratch(label_width);
    PlanGradients();
    return std::move(plan_);
  }

 private:
  int ForwardTick(int node) const { return node + 1; }
  int LossTick() const { return n_ + 1; }
  int BackwardTick(int node) const { return 2 * n_ + 1 - node; }

  int NewBuffer(std::int64_t per_sample, int first, int last) {
    plan_.buffers.push_back(PlannedBuffer{.per_sample = per_sample, .first = first, .last = last});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }
  void KeepUntil(int buffer, int tick) {
    plan_.buffers[At(buffer)].last = std::max(plan_.buffers[At(buffer)].last, tick);
  }
  std::int64_t Elements(ValueId value) const { return graph_.values[At(value)].elements(); }

  // Whether node may write over what lies in its first input's memory: nobody may read that later, under any of the
  // names that it has.
  bool MayOverwrite(int node) const {
    const int buffer = plan_.value_buffers[At(graph_.nodes[At(node)].inputs[0])];
    int uses_by_node = 0;
    for (ValueId value = 0; value <= node; ++value) {
      if (plan_.value_buffers[At(value)] != buffer) continue;
      const int producer = ProducerOf(value);
      if (producer >= 0 && graph_.nodes[At(producer)].has_backward &&
          graph_.nodes[At(producer)].plan.backward_reads_output) {
        return false;
      }
      for (int consumer : consumers_[At(value)]) {
        const Node& reader = graph_.nodes[At(consumer)];
        if (reader.has_backward && reader.plan.backward_reads_inputs) return false;
        if (consumer == node) {
          ++uses_by_node;
        } else if (consumer > node || plan_.value_buffers[At(OutputOf(consumer))] != buffer) {
          return false;
        }
      }
    }
    return uses_by_node == 1;
  }

  void PlanValues() {
    plan_.value_buffers.assign(graph_.values.size(), -1);
    if (!sparse_) plan_.value_buffers[kInputValue] = NewBuffer(Elements(kInputValue), 0, 0);
    for (int i = 0; i < n_; ++i) {
      const Node& node = graph_.nodes[At(i)];
      const int input = plan_.value_buffers[At(node.inputs[0])];
      const bool shares =
          input >= 0 && node.plan.output.elements() == Elements(node.inputs[0]) &&
          (node.plan.sharing == Sharing::kView || (node.plan.sharing == Sharing::kInPlace && MayOverwrite(i)));
      plan_.value_buffers[At(OutputOf(i))] =
          shares ? input : NewBuffer(node.plan.output.elements(), ForwardTick(i), ForwardTick(i));
      MarkReads(i);
    }
    KeepUntil(plan_.value_buffers[At(graph_.output())], LossTick());
  }

  // Extends the lives of what node i reads and gives, forward and backward.
  void MarkReads(int i) {
    const Node& node = graph_.nodes[At(i)];
    for (ValueId input : node.inputs) {
      const int buffer = plan_.value_buffers[At(input)];
      if (buffer < 0) continue;
      KeepUntil(buffer, ForwardTick(i));
      if (node.has_backward && node.plan.backward_reads_inputs) KeepUntil(buffer, BackwardTick(i));
    }
    const int output = plan_.value_buffers[At(OutputOf(i))];
    KeepUntil(output, ForwardTick(i));
    if (node.has_backward && node.plan.backward_reads_output) KeepUntil(output, BackwardTick(i));
  }

  void PlanScratch(std::int64_t label_width) {
    plan_.saved_buffers.assign(At(n_), -1);
    plan_.workspace_buffers.assign(At(n_), -1);
    for (int i = 0; i < n_; ++i) {
      const LayerPlan& layer = graph_.nodes[At(i)].plan;
      if (layer.saved_per_sample > 0 || layer.saved_fixed > 0) {
        plan_.saved_buffers[At(i)] = NewBuffer(layer.saved_per_sample, ForwardTick(i), BackwardTick(i));
        plan_.buffers.back().fixed = layer.saved_fixed;
      }
      plan_.workspace_buffers[At(i)] = NewBuffer(0, ForwardTick(i), BackwardTick(i));
    }
    plan_.labels = NewBuffer(label_width, 0, LossTick());
    plan_.losses = NewBuffer(1, LossTick(), 2 * n_ + 1);
  }

  void PlanGradients() {
    plan_.gradient_buffers.assign(graph_.values.size(), -1);
    plan_.routes.resize(At(n_));
    plan_.gradient_buffers[At(graph_.output())] = NewBuffer(Elements(graph_.output()), LossTick(), LossTick());
    for (int i = n_ - 1; i >= 0; --i) {
      const Node& node = graph_.nodes[At(i)];
      plan_.routes[At(i)].resize(node.inputs.size());
      if (!node.has_backward) continue;
      KeepUntil(plan_.gradient_buffers[At(OutputOf(i))], BackwardTick(i));
      for (std::size_t k = 0; k < node.inputs.size(); ++k) plan_.routes[At(i)][k] = Route(i, k);
    }
  }

  GradientRoute Route(int i, std::size_t k) {
    const Node& node = graph_.nodes[At(i)];
    const ValueId input = node.inputs[k];
    const int tick = BackwardTick(i);
    const bool wanted = graph_.requires_gradient[At(input)];
    if (!wanted && !node.plan.backward_writes_all_inputs) return {};
    GradientRoute route;
    // The output's gradient ends here, so that the first input's may take over its memory.
    const bool shares =
        k == 0 && wanted && node.plan.sharing != Sharing::kNone && node.plan.output.elements() == Elements(input);
    route.written = shares ? plan_.gradient_buffers[At(OutputOf(i))] : NewBuffer(Elements(input), tick, tick);
    if (!wanted) return route;
    int& gradient = plan_.gradient_buffers[At(input)];
    if (gradient < 0) {
      gradient = route.written;
    } else {
      route.accumulated_into = gradient;
    }
    return route;
  }

  const Graph& graph_;
  const bool sparse_;
  const int n_;
  std::vector<std::vector<int>> consumers_;  // by value
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan PlanMemory(const Graph& graph, bool sparse, std::int64_t label_width) {
  return Planner(graph, sparse).Plan(label_width);
}

Placement PlaceBuffers(const std::vector<PlannedBuffer>& buffers, const std::vector<std::size_t>& sizes) {
  EK_CHECK(buffers.size() == sizes.size());
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });

  Placement placement;
  placement.offsets.assign(buffers.size(), 0);
  std::vector<std::size_t> placed;  // by ascending offset
  for (std::size_t index : order) {
    const std::size_t size = (sizes[index] + kAlignment - 1) / kAlignment * kAlignment;
    std::size_t offset = 0;
    for (std::size_t other : placed) {
      if (buffers[other].last < buffers[index].first || buffers[index].last < buffers[other].first) continue;
      if (offset + size <= placement.offsets[other]) break;
      const std::size_t end = placement.offsets[other] + (sizes[other] + kAlignment - 1) / kAlignment * kAlignment;
      offset = std::max(offset, end);
    }
    placement.offsets[index] = offset;
    placement.total = std::max(placement.total, offset + size);
    auto position = std::upper_bound(placed.begin(), placed.end(), offset,
                                     [&](std::size_t value, std::size_t at) { return value < placement.offsets[at]; });
    placed.insert(position, index);
  }
  return placement;
}

}  // namespace evenkeel
