#include "push_pull_job.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel::bench {
namespace {

// Elements differ from their neighbours, so that a stripe in the wrong place shows. Powers of two keep sums exact for
// long.
constexpr std::int64_t kPeriod = 1009;
constexpr float kMomentum = 0.5f;
constexpr float kFirstValue = 1;

double GradientOf(std::int64_t element) { return static_cast<double>(1 + element % kPeriod) / 1024; }

}  // namespace

TensorSpec PushPullJob::Tensor() const {
  TensorSpec tensor;
  tensor.name = "weight";
  tensor.shape = Shape{bytes / static_cast<std::int64_t>(sizeof(float))};
  tensor.initializer.kind = InitializerSpec::Kind::kConstant;
  tensor.initializer.value = kFirstValue;
  return tensor;
}

OptimizerSpec PushPullJob::Optimizer() const {
  return OptimizerSpec{.kind = OptimizerSpec::Kind::kMomentum, .momentum = kMomentum};
}

absl::StatusOr<ParameterLayout> PushPullJob::Layout() const {
  return ParameterLayout::Create({Tensor()}, bucket_bytes, static_cast<std::uint32_t>(servers));
}

Envelope PushPullJob::MakeEnvelope(Incarnation sender) const {
  return Envelope{.job_id = std::string(32, 'b'),
                  .spec_hash = std::string(64, 'b'),
                  .term = Term(1),
                  .generation = Generation(1),
                  .layout = LayoutNumber(1),
                  .sender = sender,
                  .membership_epoch = MembershipEpoch(1)};
}

void PushPullJob::FillGradients(int worker, std::span<float> flat) const {
  for (std::size_t i = 0; i < flat.size(); ++i) {
    flat[i] = static_cast<float>(GradientOf(static_cast<std::int64_t>(i)) * (worker + 1));
  }
}

absl::Status PushPullJob::Check(std::span<const float> flat, std::uint64_t commits) const {
  // Each commit adds the mean gradient to a velocity that halves: after n commits they have moved the parameter by
  // learning_rate * g * (sum over k <= n of (1 - m^k) / (1 - m)).
  const auto n = static_cast<double>(commits);
  const double m = kMomentum;
  const double steps = (n - m * (1 - std::pow(m, n)) / (1 - m)) / (1 - m);
  const double mean = (workers + 1) / 2.0;  // of the workers' factors
  // Every commit rounds once, at worst always in the same direction.
  const double tolerance = 1e-6 + n * 1.2e-7;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    const double moved = kLearningRate * GradientOf(static_cast<std::int64_t>(i)) * mean * steps;
    const double right = kFirstValue - moved;
    if (!(std::abs(flat[i] - right) <= tolerance * (kFirstValue + moved))) {
      return absl::InternalError(
          absl::StrCat("after ", commits, " commits element ", i, " is ", flat[i], "; right is ", right));
    }
  }
  return absl::OkStatus();
}

}  // namespace evenkeel::bench
