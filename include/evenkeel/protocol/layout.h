// The parameter space: one flat float32 vector, cut into buckets, each striped over all servers.
//
//   flat vector = [ parameters segment | statistics segment ]; each tensor starts at a multiple of 16 floats (64 bytes)
//   buckets     = at most bucket_bytes each, in the order in which the backward pass finishes them: the first bucket
//   holds
//                 the last tensors; statistics come in buckets of their own, after the others
//   stripes     = bucket b cut evenly, at multiples of 16 floats, over all servers; a stripe may be empty
//
// Buckets do not depend on the number of servers. Immutable; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "evenkeel/core/ids.h"
#include "evenkeel/core/specs.h"

namespace evenkeel {

constexpr std::int64_t kAlignFloats = 16;

struct TensorPlace {
  std::int64_t offset = 0;  // floats, in the flat vector
  std::int64_t count = 0;
};

struct Bucket {
  std::int64_t begin = 0, end = 0;  // floats, in the flat vector
  bool statistic = false;
  // Tensors that overlap the bucket, as indices into tensors(); the bucket is complete when all of them are.
  int first_tensor = 0, last_tensor = -1;  // inclusive
  std::int64_t size() const { return end - begin; }
};

// A server's part of a bucket.
struct Stripe {
  std::int64_t begin = 0, end = 0;  // floats, in the flat vector
  std::int64_t local_offset = 0;    // floats, in the server's own arena (stripes in bucket order)
  std::int64_t size() const { return end - begin; }
};

class ParameterLayout {
 public:
  // Requires trainable tensors before statistics (as Model::tensors gives them).
  // Errors: kInvalidArgument names the tensor (duplicate name, empty shape, order).
  static absl::StatusOr<ParameterLayout> Create(std::vector<TensorSpec> tensors, std::int64_t bucket_bytes,
                                                std::uint32_t servers);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<TensorPlace>& places() const { return places_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::uint32_t servers() const { return servers_; }
  std::int64_t parameter_floats() const { return parameter_floats_; }  // where the statistics segment begins
  std::int64_t total_floats() const { return total_floats_; }
  const Stripe& StripeOf(int bucket, ServerIndex server) const {
    return stripes_[static_cast<size_t>(bucket) * servers_ + server.value()];
  }
  // Length of a server's arena. 0: it owns nothing.
  std::int64_t ServerFloats(ServerIndex server) const;
  // Length of the part of a server's arena that holds parameters: the statistics' stripes come after it.
  std::int64_t ServerParameterFloats(ServerIndex server) const;

 private:
  ParameterLayout() = default;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorPlace> places_;
  std::vector<Bucket> buckets_;
  std::vector<Stripe> stripes_;
  std::uint32_t servers_ = 1;
  std::int64_t parameter_floats_ = 0;
  std::int64_t total_floats_ = 0;
};

// Writes elements [begin, begin + out.size()) of a tensor's initial values: a function of (seed, tensor.name, index),
// whoever computes it and however it is cut.
void InitializeTensor(const TensorSpec& tensor, std::uint64_t seed, std::int64_t begin, std::span<float> out);

}  // namespace evenkeel
