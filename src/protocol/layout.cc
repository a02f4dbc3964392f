#include "evenkeel/protocol/layout.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace {

// Bounds that keep a stranger's description from exhausting memory.
constexpr std::int64_t kMaxFloats = std::int64_t{1} << 40;
constexpr std::int64_t kMaxStripes = std::int64_t{1} << 24;
constexpr std::uint32_t kMaxServers = 65536;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t AlignUp(std::int64_t floats) { return CeilDiv(floats, kAlignFloats) * kAlignFloats; }

absl::Status CheckTensor(const TensorSpec& tensor) {
  if (tensor.name.empty()) return absl::InvalidArgumentError("[layout] a tensor has no name");
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("[layout] tensor ", tensor.name, " ", why));
  };
  std::int64_t count = 1;
  for (std::int64_t dim : tensor.shape.dims()) {
    if (dim < 1) return bad(absl::StrCat("has the empty shape ", tensor.shape.ToString()));
    if (dim > kMaxFloats / count) return bad(absl::StrCat("of shape ", tensor.shape.ToString(), " is too large"));
    count *= dim;
  }
  const InitializerSpec& initializer = tensor.initializer;
  if (initializer.fan_in < 1 || initializer.fan_out < 1) {
    return bad(absl::StrCat("has fan_in ", initializer.fan_in, " and fan_out ", initializer.fan_out,
                            "; both must be at least 1"));
  }
  if (!std::isfinite(initializer.value) || !std::isfinite(initializer.scale)) {
    return bad("has an initializer that is not finite");
  }
  return absl::OkStatus();
}

// Cuts [begin, end) from its end backwards into buckets of one size, the last one perhaps shorter.
void CutEvenly(std::int64_t begin, std::int64_t end, std::int64_t bucket_floats, bool statistic,
               std::vector<Bucket>& buckets) {
  std::int64_t count = CeilDiv(end - begin, bucket_floats);
  std::int64_t size = AlignUp(CeilDiv(end - begin, count));
  for (std::int64_t stop = end; stop > begin; stop -= size) {
    buckets.push_back({.begin = std::max(begin, stop - size), .end = stop, .statistic = statistic});
  }
}

// A tensor of half a bucket or more shares none with those before it: their gradients come later, and their parameters
// are needed earlier, than its many bytes could travel.
void CutBuckets(const std::vector<TensorPlace>& places, std::int64_t begin, std::int64_t end,
                std::int64_t bucket_floats, bool statistic, std::vector<Bucket>& buckets) {
  for (auto place = places.rbegin(); place != places.rend() && begin < end; ++place) {
    if (place->offset >= end || (place->offset > begin && 2 * place->count < bucket_floats)) continue;
    const std::int64_t from = std::max(begin, place->offset);
    CutEvenly(from, end, bucket_floats, statistic, buckets);
    end = from;
  }
}

// Tensors that overlap [bucket.begin, bucket.end). A bucket that held padding only cannot be: padding is shorter than a
// bucket's alignment and follows a tensor's last, partly used block.
void FindTensors(const std::vector<TensorPlace>& places, Bucket& bucket) {
  auto first = std::partition_point(places.begin(), places.end(), [&](const TensorPlace& place) {
    return place.offset + place.count <= bucket.begin;
  });
  auto last =
      std::partition_point(first, places.end(), [&](const TensorPlace& place) { return place.offset < bucket.end; });
  bucket.first_tensor = static_cast<int>(first - places.begin());
  bucket.last_tensor = static_cast<int>(last - places.begin()) - 1;
}

}  // namespace

absl::StatusOr<ParameterLayout> ParameterLayout::Create(std::vector<TensorSpec> tensors, std::int64_t bucket_bytes,
                                                        std::uint32_t servers) {
  const std::int64_t bucket_floats =
      bucket_bytes / static_cast<std::int64_t>(sizeof(float)) / kAlignFloats * kAlignFloats;
  if (bucket_floats < kAlignFloats) {
    return absl::InvalidArgumentError(
        absl::StrCat("[layout] bucket_bytes is ", bucket_bytes, "; at least ", kAlignFloats * sizeof(float)));
  }
  if (servers < 1 || servers > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("[layout] ", servers, " servers; 1 to ", kMaxServers, " are possible"));
  }
  ParameterLayout layout;
  layout.servers_ = servers;
  absl::flat_hash_set<std::string_view> names;
  std::int64_t at = 0;
  bool statistics = false;
  for (const TensorSpec& tensor : tensors) {
    EK_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("[layout] two tensors have the name ", tensor.name));
    }
    if (tensor.statistic && !statistics) layout.parameter_floats_ = at;
    if (statistics && !tensor.statistic) {
      return absl::InvalidArgumentError(
          absl::StrCat("[layout] tensor ", tensor.name, " is trainable but follows a statistic"));
    }
    statistics = tensor.statistic;
    layout.places_.push_back({.offset = at, .count = tensor.shape.elements()});
    at += AlignUp(tensor.shape.elements());
    if (at > kMaxFloats) {
      return absl::InvalidArgumentError(
          absl::StrCat("[layout] tensor ", tensor.name, " ends beyond ", kMaxFloats, " floats"));
    }
  }
  layout.total_floats_ = at;
  if (!statistics) layout.parameter_floats_ = at;
  if ((3 * (at / bucket_floats) + 4) * servers > kMaxStripes) {
    return absl::InvalidArgumentError(absl::StrCat("[layout] bucket_bytes is ", bucket_bytes, ", too small for ", at,
                                                   " floats on ", servers, " servers"));
  }
  CutBuckets(layout.places_, 0, layout.parameter_floats_, bucket_floats, false, layout.buckets_);
  CutBuckets(layout.places_, layout.parameter_floats_, at, bucket_floats, true, layout.buckets_);
  for (Bucket& bucket : layout.buckets_) FindTensors(layout.places_, bucket);
  layout.tensors_ = std::move(tensors);

  std::vector<std::int64_t> local(servers, 0);
  layout.stripes_.reserve(layout.buckets_.size() * servers);
  for (const Bucket& bucket : layout.buckets_) {
    const std::int64_t blocks = bucket.size() / kAlignFloats;
    for (std::int64_t s = 0; s < servers; ++s) {
      Stripe stripe{.begin = bucket.begin + blocks * s / servers * kAlignFloats,
                    .end = bucket.begin + blocks * (s + 1) / servers * kAlignFloats,
                    .local_offset = local[static_cast<std::size_t>(s)]};
      local[static_cast<std::size_t>(s)] += stripe.size();
      layout.stripes_.push_back(stripe);
    }
  }
  return layout;
}

std::int64_t ParameterLayout::ServerFloats(ServerIndex server) const {
  EK_CHECK(server.value() < servers_);
  if (buckets_.empty()) return 0;
  const Stripe& last = StripeOf(static_cast<int>(buckets_.size()) - 1, server);
  return last.local_offset + last.size();
}

std::int64_t ParameterLayout::ServerParameterFloats(ServerIndex server) const {
  EK_CHECK(server.value() < servers_);
  for (std::size_t b = buckets_.size(); b > 0; --b) {
    if (buckets_[b - 1].statistic) continue;
    const Stripe& last = StripeOf(static_cast<int>(b) - 1, server);
    return last.local_offset + last.size();
  }
  return 0;
}

}  // namespace evenkeel
