#include "worker/step_buffers.h"

#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel {

absl::StatusOr<std::unique_ptr<StepBuffers>> StepBuffers::Create(ParameterLayout layout) {
  std::unique_ptr<StepBuffers> buffers(new StepBuffers(std::move(layout)));
  const ParameterLayout& l = buffers->layout_;
  const auto bytes = static_cast<std::size_t>(l.total_floats()) * sizeof(float);
  EK_ASSIGN_OR_RETURN(buffers->parameters_, Arena::Allocate(bytes));
  EK_ASSIGN_OR_RETURN(buffers->gradients_, Arena::Allocate(bytes, MemoryKind::kShared));  // servers read it
  buffers->buckets_of_tensor_.resize(l.tensors().size());
  for (std::size_t b = 0; b < l.buckets().size(); ++b) {
    const Bucket& bucket = l.buckets()[b];
    for (int t = bucket.first_tensor; t <= bucket.last_tensor; ++t) {
      buffers->buckets_of_tensor_[static_cast<std::size_t>(t)].push_back(static_cast<int>(b));
    }
    buffers->tensors_in_bucket_.push_back(bucket.last_tensor - bucket.first_tensor + 1);
  }
  return buffers;
}

StepBuffers::~StepBuffers() {
  MutexLock lock(in_flight_->mutex);
  while (in_flight_->count > 0) in_flight_->changed.Wait(in_flight_->mutex);
}

std::vector<void*> StepBuffers::ParameterPointers() const {
  std::vector<void*> pointers;
  for (const TensorPlace& place : layout_.places()) pointers.push_back(parameters_.floats().data() + place.offset);
  return pointers;
}

std::vector<void*> StepBuffers::GradientPointers() const {
  std::vector<void*> pointers;
  for (const TensorPlace& place : layout_.places()) pointers.push_back(gradients_.floats().data() + place.offset);
  return pointers;
}

bool StepBuffers::Place(int bucket, ServerIndex server, const PayloadIn& payload) {
  if (bucket < 0 || static_cast<std::size_t>(bucket) >= layout_.buckets().size()) return false;
  const Stripe& stripe = layout_.StripeOf(bucket, server);
  const std::span<float> target =
      parameters_.floats().subspan(static_cast<std::size_t>(stripe.begin), static_cast<std::size_t>(stripe.size()));
  if (payload.size() != target.size_bytes()) return false;
  return payload.CopyTo(std::as_writable_bytes(target));
}

bool StepBuffers::BeginStep(TimePoint deadline) {
  missing_ = tensors_in_bucket_;
  MutexLock lock(in_flight_->mutex);
  while (in_flight_->count > 0) {
    if (!in_flight_->changed.WaitUntil(in_flight_->mutex, deadline) && in_flight_->count > 0) return false;
  }
  return true;
}

void StepBuffers::TensorReady(int tensor, const std::function<void(int)>& bucket_ready) {
  for (int bucket : buckets_of_tensor_[static_cast<std::size_t>(tensor)]) {
    if (--missing_[static_cast<std::size_t>(bucket)] == 0) bucket_ready(bucket);
  }
}

PayloadOut StepBuffers::Gradient(int bucket, ServerIndex server) {
  const Stripe& stripe = layout_.StripeOf(bucket, server);
  const std::span<const float> source =
      gradients_.floats().subspan(static_cast<std::size_t>(stripe.begin), static_cast<std::size_t>(stripe.size()));
  {
    MutexLock lock(in_flight_->mutex);
    ++in_flight_->count;
  }
  std::shared_ptr<const void> owner(source.data(), [held = in_flight_](const void*) {
    MutexLock lock(held->mutex);
    if (--held->count == 0) held->changed.NotifyAll();
  });
  return PayloadOut{std::as_bytes(source), std::move(owner)};
}

}  // namespace evenkeel
