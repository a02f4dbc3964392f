#include "worker/step_buffers.h"

#include <utility>

#include "evenkeel/core/status.h"

namespace evenkeel {

absl::StatusOr<std::unique_ptr<StepBuffers>> StepBuffers::Create(ParameterLayout layout, WireDtype wire) {
  std::unique_ptr<StepBuffers> buffers(new StepBuffers(std::move(layout), wire));
  const ParameterLayout& l = buffers->layout_;
  const auto bytes = static_cast<std::size_t>(l.total_floats()) * sizeof(float);
  EK_ASSIGN_OR_RETURN(buffers->parameters_, Arena::Allocate(bytes));
  EK_ASSIGN_OR_RETURN(buffers->gradients_, Arena::Allocate(bytes, MemoryKind::kShared));  // servers read it
  if (wire == WireDtype::kBfloat16) {
    const auto floats = static_cast<std::size_t>(l.parameter_floats());
    EK_ASSIGN_OR_RETURN(buffers->means_, Arena::Allocate(floats * sizeof(std::uint16_t), MemoryKind::kShared));
    EK_ASSIGN_OR_RETURN(buffers->kept_, Arena::Allocate(floats * sizeof(float)));
    EK_ASSIGN_OR_RETURN(buffers->fresh_, Arena::Allocate(floats * sizeof(float)));
  }
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
  const bool statistic = layout_.buckets()[static_cast<std::size_t>(bucket)].statistic;
  if (!statistic && payload.size() == target.size() * sizeof(std::uint16_t)) {
    const std::span<std::uint16_t> half = UpperHalf(target);
    if (!payload.CopyTo(std::as_writable_bytes(half))) return false;
    DecodeSums(half, 1, target);
    return true;
  }
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

std::span<std::uint16_t> StepBuffers::MeansOf(std::int64_t begin, std::int64_t end) const {
  auto* const all = reinterpret_cast<std::uint16_t*>(means_.data());
  return {all + begin, static_cast<std::size_t>(end - begin)};
}

void StepBuffers::Encode(int bucket, std::int64_t samples) {
  if (!Means(bucket)) return;
  const Bucket& b = layout_.buckets()[static_cast<std::size_t>(bucket)];
  const auto part = [&b](const Arena& arena) {
    return arena.floats().subspan(static_cast<std::size_t>(b.begin), static_cast<std::size_t>(b.size()));
  };
  const std::span<const float> kept = rest_kept_ ? part(kept_) : std::span<float>();
  EncodeMeans(part(gradients_), samples, kept, MeansOf(b.begin, b.end), part(fresh_));
}

void StepBuffers::KeepRest() {
  std::swap(kept_, fresh_);
  rest_kept_ = wire_ == WireDtype::kBfloat16;
}

PayloadOut StepBuffers::Gradient(int bucket, ServerIndex server) {
  const Stripe& stripe = layout_.StripeOf(bucket, server);
  const std::span<const float> sums =
      gradients_.floats().subspan(static_cast<std::size_t>(stripe.begin), static_cast<std::size_t>(stripe.size()));
  const std::span<const std::byte> source =
      Means(bucket) ? std::as_bytes(MeansOf(stripe.begin, stripe.end)) : std::as_bytes(sums);
  {
    MutexLock lock(in_flight_->mutex);
    ++in_flight_->count;
  }
  std::shared_ptr<const void> owner(source.data(), [held = in_flight_](const void*) {
    MutexLock lock(held->mutex);
    if (--held->count == 0) held->changed.NotifyAll();
  });
  return PayloadOut{source, std::move(owner)};
}

}  // namespace evenkeel
