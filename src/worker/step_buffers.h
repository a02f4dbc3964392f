// A worker's memory: the pulled parameters and the step's gradients, both flat vectors in the layout's order, and which
// buckets the backward pass has finished. On a 16-bit wire also the gradients as they travel, and what rounding took
// from them.
//
// Threading: Place is for any thread; the rest for the step loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/arena.h"
#include "evenkeel/core/bfloat16.h"
#include "evenkeel/core/mutex.h"
#include "evenkeel/protocol/layout.h"
#include "evenkeel/protocol/stream.h"

namespace evenkeel {

class StepBuffers {
 public:
  static absl::StatusOr<std::unique_ptr<StepBuffers>> Create(ParameterLayout layout, WireDtype wire);

  const ParameterLayout& layout() const { return layout_; }
  // One pointer a tensor, for Model::Bind.
  std::vector<void*> ParameterPointers() const;
  std::vector<void*> GradientPointers() const;

  // Another division of the same parameters among servers. Requires that nothing calls Place meanwhile.
  void Divide(ParameterLayout layout) { layout_ = std::move(layout); }

  // Writes a stripe of a pulled version. False when the payload's size is not the stripe's, or it is not Whole().
  bool Place(int bucket, ServerIndex server, const PayloadIn& payload);

  // A new step: no bucket is finished, and nobody sends the old gradients any more (waits until `deadline`; false when
  // it passes).
  bool BeginStep(TimePoint deadline);
  // Tensor i's gradient is final; calls `bucket_ready` for each bucket that is complete with it.
  void TensorReady(int tensor, const std::function<void(int)>& bucket_ready);
  // Those that hold a part of the tensor.
  const std::vector<int>& BucketsOf(int tensor) const { return buckets_of_tensor_[static_cast<std::size_t>(tensor)]; }
  // Whether the bucket travels as means of bfloat16.
  bool Means(int bucket) const {
    return wire_ == WireDtype::kBfloat16 && !layout_.buckets()[static_cast<std::size_t>(bucket)].statistic;
  }
  // Makes them, once a step, of a finished bucket; nothing where they are none.
  void Encode(int bucket, std::int64_t samples);
  // The step's update has committed: what rounding took from it is added to the next one.
  void KeepRest();
  // Nothing is added to the next one.
  void DropRest() { rest_kept_ = false; }
  // The server's part of a bucket's gradient as it travels; held until the transport has sent it.
  PayloadOut Gradient(int bucket, ServerIndex server);

 private:
  StepBuffers(ParameterLayout layout, WireDtype wire) : layout_(std::move(layout)), wire_(wire) {}

  std::span<std::uint16_t> MeansOf(std::int64_t begin, std::int64_t end) const;  // floats, in the flat vector

  ParameterLayout layout_;
  const WireDtype wire_;
  Arena parameters_, gradients_;
  Arena means_;         // bfloat16, of the parameters' segment, as the next two
  Arena kept_, fresh_;  // what rounding took: from the last update that committed, from this one
  bool rest_kept_ = false;
  std::vector<std::vector<int>> buckets_of_tensor_;
  std::vector<int> tensors_in_bucket_;
  std::vector<int> missing_;  // tensors a bucket still waits for

  // Shared with payloads in flight, which may outlive this object's step but not the process's arenas: the arenas are
  // freed only once all are sent.
  struct InFlight {
    Mutex mutex;
    CondVar changed;
    int count ABSL_GUARDED_BY(mutex) = 0;
  };
  std::shared_ptr<InFlight> in_flight_ = std::make_shared<InFlight>();

 public:
  ~StepBuffers();
};

}  // namespace evenkeel
