// A bench for kernels: makes tensors in any backend's memory, runs an operation, reads results back as double.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "evenkeel/core/random.h"
#include "evenkeel/kernels/backend.h"

namespace evenkeel::testing {

using Values = std::vector<double>;

// Random values that float32 holds exactly, so that all backends see the same.
inline Values RandomValues(Rng& rng, std::int64_t count, double low = -1, double high = 1) {
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = static_cast<float>(low + (high - low) * rng.NextDouble());
  return values;
}

// Owns what it makes until it is destroyed.
class Lab {
 public:
  explicit Lab(Backend& backend) : backend_(backend) {}
  Backend& backend() { return backend_; }

  Tensor Make(const Shape& shape, const Values& values) {
    REQUIRE(shape.elements() == static_cast<std::int64_t>(values.size()));
    Tensor tensor{Bytes(values.size() * SizeOf(backend_.dtype())), shape, backend_.dtype()};
    std::vector<std::byte> host(tensor.bytes());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (backend_.dtype() == DType::kFloat32) {
        const auto value = static_cast<float>(values[i]);
        std::memcpy(host.data() + i * 4, &value, 4);
      } else {
        std::memcpy(host.data() + i * 8, &values[i], 8);
      }
    }
    REQUIRE(backend_.CopyToDevice(host, tensor.data).ok());
    return tensor;
  }

  // An output; its first contents are NaN, so that an element which is not overwritten shows.
  Tensor Output(const Shape& shape) {
    return Make(shape, Values(static_cast<std::size_t>(shape.elements()), std::numeric_limits<double>::quiet_NaN()));
  }

  void* Bytes(std::size_t bytes) {
    auto buffer = backend_.Allocate(std::max<std::size_t>(bytes, 64));
    REQUIRE(buffer.ok());
    buffers_.push_back(*std::move(buffer));
    return buffers_.back()->data();
  }

  Values Read(const Tensor& tensor) {
    REQUIRE(backend_.Synchronize().ok());
    std::vector<std::byte> host(tensor.bytes());
    REQUIRE(backend_.CopyToHost(tensor.data, host).ok());
    Values values(static_cast<std::size_t>(tensor.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (tensor.dtype == DType::kFloat32) {
        float value;
        std::memcpy(&value, host.data() + i * 4, 4);
        values[i] = value;
      } else {
        std::memcpy(&values[i], host.data() + i * 8, 8);
      }
    }
    return values;
  }

 private:
  Backend& backend_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

inline void RequireOk(const absl::Status& status) {
  INFO(std::string(status.message()));
  REQUIRE(status.ok());
}

// Largest difference, relative to the largest expected value; infinite if either has a NaN.
inline double Distance(const Values& actual, const Values& expected) {
  REQUIRE(actual.size() == expected.size());
  double difference = 0, scale = 1e-30;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    if (std::isnan(d)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
    scale = std::max(scale, std::abs(expected[i]));
  }
  return difference / scale;
}

// An operation on fixed inputs, giving all its outputs.
using Run = std::function<std::vector<Values>(Lab&)>;

struct NamedBackend {
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
};

inline const std::vector<NamedBackend>& BackendsUnderTest() {
  static const auto* backends = new std::vector<NamedBackend>{
      {"reference float32", [] { return MakeReferenceBackend(DType::kFloat32); }},
      {"cpu, 1 thread", [] { return *MakeCpuBackend({.threads = 1}); }},
      {"cpu, 2 threads", [] { return *MakeCpuBackend({.threads = 2}); }},
  };
  return *backends;
}

// Every backend gives what the reference gives in double, within 1e-4; the same bits when it runs again, and from
// another instance.
inline void Conform(const Run& run, double tolerance = 1e-4) {
  static const auto* truth = MakeReferenceBackend(DType::kFloat64).release();
  static const auto* instances = [] {
    auto* made = new std::vector<std::pair<std::unique_ptr<Backend>, std::unique_ptr<Backend>>>;
    for (const NamedBackend& backend : BackendsUnderTest()) made->emplace_back(backend.make(), backend.make());
    return made;
  }();
  Lab truth_lab(const_cast<Backend&>(*truth));
  const std::vector<Values> expected = run(truth_lab);
  for (std::size_t b = 0; b < instances->size(); ++b) {
    const std::string& name = BackendsUnderTest()[b].name;
    Lab first(*(*instances)[b].first), second(*(*instances)[b].second);
    const std::vector<Values> actual = run(first), again = run(first), other = run(second);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      INFO(name << ", output " << i);
      CHECK(Distance(actual[i], expected[i]) <= tolerance);
      CHECK(actual[i] == again[i]);
      CHECK(actual[i] == other[i]);
    }
  }
}

}  // namespace evenkeel::testing
