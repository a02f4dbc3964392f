#include "evenkeel/protocol/layout.h"

#include <catch2/catch.hpp>

namespace evenkeel {
namespace {

std::vector<TensorSpec> Tensors() {
  return {{.name = "a", .shape = Shape({10, 10})},
          {.name = "b", .shape = Shape({3})},
          {.name = "c", .shape = Shape({1000})},
          {.name = "d", .shape = Shape()},
          {.name = "m", .shape = Shape({20}), .statistic = true},
          {.name = "v", .shape = Shape({50}), .statistic = true}};
}

ParameterLayout Layout(std::int64_t bucket_bytes, std::uint32_t servers) {
  auto layout = ParameterLayout::Create(Tensors(), bucket_bytes, servers);
  REQUIRE(layout.status().ToString() == "OK");
  return *std::move(layout);
}

TEST_CASE("tensors stand in order at multiples of 64 bytes", "[protocol]") {
  ParameterLayout layout = Layout(1 << 20, 1);
  std::vector<std::int64_t> offsets;
  for (const TensorPlace& place : layout.places()) offsets.push_back(place.offset);
  CHECK(offsets == std::vector<std::int64_t>{0, 112, 128, 1136, 1152, 1184});
  CHECK(layout.parameter_floats() == 1152);
  CHECK(layout.total_floats() == 1248);
}

TEST_CASE("buckets cover each segment once, from its end backwards, statistics last", "[protocol]") {
  for (std::int64_t bucket_bytes : {64, 100, 256, 1024, 4096, 1 << 20}) {
    CAPTURE(bucket_bytes);
    ParameterLayout layout = Layout(bucket_bytes, 1);
    std::int64_t stop = layout.parameter_floats();
    bool statistics = false;
    for (const Bucket& bucket : layout.buckets()) {
      if (bucket.statistic && !statistics) {
        CHECK(stop == 0);
        statistics = true;
        stop = layout.total_floats();
      }
      CHECK(bucket.statistic == statistics);
      CHECK(bucket.end == stop);
      CHECK(bucket.begin % kAlignFloats == 0);
      CHECK(bucket.size() > 0);
      CHECK(bucket.size() * 4 <= std::max<std::int64_t>(bucket_bytes, 64));
      stop = bucket.begin;
    }
    CHECK(statistics);
    CHECK(stop == layout.parameter_floats());
  }
}

TEST_CASE("a tensor of half a bucket or more shares none with those before it", "[protocol]") {
  std::vector<TensorSpec> tensors;
  for (const std::int64_t count : {16, 100, 4000, 16, 511, 512, 32}) {
    TensorSpec tensor;
    tensor.name = absl::StrCat("t", tensors.size());
    tensor.shape = Shape{count};
    tensors.push_back(tensor);
  }
  const auto layout = ParameterLayout::Create(tensors, 4 * 1024, 2);
  REQUIRE(layout.ok());
  std::vector<std::pair<int, int>> buckets;
  for (const Bucket& bucket : layout->buckets()) buckets.emplace_back(bucket.first_tensor, bucket.last_tensor);
  using Buckets = std::vector<std::pair<int, int>>;
  CHECK(buckets == Buckets{{5, 6}, {2, 4}, {2, 2}, {2, 2}, {2, 2}, {2, 2}, {0, 1}});
}

TEST_CASE("a bucket names exactly the tensors that overlap it", "[protocol]") {
  ParameterLayout layout = Layout(256, 1);
  for (const Bucket& bucket : layout.buckets()) {
    for (int t = 0; t < static_cast<int>(layout.tensors().size()); ++t) {
      const TensorPlace& place = layout.places()[static_cast<std::size_t>(t)];
      bool overlaps = place.offset < bucket.end && place.offset + place.count > bucket.begin;
      CHECK(overlaps == (t >= bucket.first_tensor && t <= bucket.last_tensor));
    }
  }
}

TEST_CASE("stripes cover each bucket once and fill each server's arena without gaps", "[protocol]") {
  for (std::uint32_t servers : {1u, 2u, 3u, 7u, 200u}) {
    CAPTURE(servers);
    ParameterLayout layout = Layout(512, servers);
    CHECK(layout.buckets().size() == Layout(512, 1).buckets().size());
    std::vector<std::int64_t> owned(servers, 0), parameters(servers, 0);
    for (int b = 0; b < static_cast<int>(layout.buckets().size()); ++b) {
      const Bucket& bucket = layout.buckets()[static_cast<std::size_t>(b)];
      std::int64_t at = bucket.begin, smallest = bucket.size(), largest = 0;
      for (std::uint32_t s = 0; s < servers; ++s) {
        const Stripe& stripe = layout.StripeOf(b, ServerIndex(s));
        CHECK(stripe.begin == at);
        CHECK(stripe.begin % kAlignFloats == 0);
        CHECK(stripe.local_offset == owned[s]);
        at = stripe.end;
        owned[s] += stripe.size();
        if (!bucket.statistic) parameters[s] += stripe.size();
        smallest = std::min(smallest, stripe.size());
        largest = std::max(largest, stripe.size());
      }
      CHECK(at == bucket.end);
      CHECK(largest - smallest <= kAlignFloats);
    }
    for (std::uint32_t s = 0; s < servers; ++s) {
      CHECK(layout.ServerFloats(ServerIndex(s)) == owned[s]);
      CHECK(layout.ServerParameterFloats(ServerIndex(s)) == parameters[s]);
    }
  }
}

TEST_CASE("layouts without statistics, without parameters and without anything are possible", "[protocol]") {
  auto parameters = ParameterLayout::Create({{.name = "w", .shape = Shape({5})}}, 1024, 2);
  REQUIRE(parameters.ok());
  CHECK(parameters->ServerFloats(ServerIndex(0)) == 0);
  CHECK(parameters->ServerFloats(ServerIndex(1)) == 16);
  auto statistics = ParameterLayout::Create({{.name = "m", .shape = Shape({5}), .statistic = true}}, 1024, 1);
  REQUIRE(statistics.ok());
  CHECK(statistics->parameter_floats() == 0);
  CHECK(statistics->ServerParameterFloats(ServerIndex(0)) == 0);
  CHECK(statistics->ServerFloats(ServerIndex(0)) == 16);
  auto nothing = ParameterLayout::Create({}, 1024, 1);
  REQUIRE(nothing.ok());
  CHECK(nothing->ServerFloats(ServerIndex(0)) == 0);
}

TEST_CASE("a layout's errors name the tensor", "[protocol]") {
  auto message = [](std::vector<TensorSpec> tensors) {
    auto layout = ParameterLayout::Create(std::move(tensors), 1024, 1);
    CHECK(layout.status().code() == absl::StatusCode::kInvalidArgument);
    return std::string(layout.status().message());
  };
  CHECK_THAT(message({{.name = "twice"}, {.name = "twice"}}), Catch::Contains("twice"));
  CHECK_THAT(message({{.name = "empty", .shape = Shape({4, 0})}}), Catch::Contains("empty"));
  CHECK_THAT(message({{.name = "huge", .shape = Shape({1 << 30, 1 << 30, 1 << 30})}}), Catch::Contains("huge"));
  CHECK_THAT(message({{.name = "m", .statistic = true}, {.name = "late"}}), Catch::Contains("late"));
  CHECK_FALSE(ParameterLayout::Create({}, 63, 1).ok());
  CHECK_FALSE(ParameterLayout::Create({}, 1024, 0).ok());
}

}  // namespace
}  // namespace evenkeel
