// oneDNN with what a training step needs around it: primitives made once per shape and kept, arguments bound without
// allocation, one scratchpad for all.
//
// Threading: one caller at a time. Errors: Run gives kInternal; making primitives throws dnnl::error, which Guarded()
// turns into kInternal at the backend's door.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "evenkeel/core/arena.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace evenkeel::kernels::cpu {

class OneDnn;

// A primitive whose arguments are bound by position.
class Step {
 public:
  struct Argument {
    int kind;  // DNNL_ARG_...
    dnnl::memory::desc desc;
  };
  Step() = default;
  // `scratchpad` is the primitive descriptor's.
  Step(const OneDnn& onednn, dnnl::primitive primitive, const dnnl::memory::desc& scratchpad,
       const std::vector<Argument>& arguments);
  // Requires as many addresses as arguments, in their order; memory as the descriptors say.
  absl::Status Run(OneDnn& onednn, std::span<const void* const> addresses);
  absl::Status Run(OneDnn& onednn, std::initializer_list<const void*> addresses) {
    return Run(onednn, std::span(addresses.begin(), addresses.size()));
  }
  explicit operator bool() const { return static_cast<bool>(primitive_); }

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;  // the arguments, then the scratchpad if there is one
  std::vector<dnnl_exec_arg_t> arguments_;
  std::size_t scratchpad_bytes_ = 0;
};

// What is kept for one operation on one set of shapes.
struct CachedOperation {
  virtual ~CachedOperation() = default;
};

class OneDnn {
 public:
  // Operation, then whatever its primitives depend on, then zeros.
  using Key = std::array<std::int64_t, 20>;

  OneDnn();
  const dnnl::engine& engine() const { return engine_; }
  dnnl::stream& stream() { return stream_; }
  // User scratchpads, strict float32.
  const dnnl::primitive_attr& attributes() const { return attributes_; }

  // The operation kept under the key, or the one that `make` returns, which pushes out the least recently used beyond
  // the limit. Stays valid until the next call. One key always goes with one type.
  template <class Operation, class Make>
  Operation& Cached(const Key& key, const Make& make) {
    if (CachedOperation* found = Find(key)) return static_cast<Operation&>(*found);
    return static_cast<Operation&>(Insert(key, make()));
  }

  // At least this many bytes, 64-byte aligned; grows and is kept. Contents last until the next call.
  absl::StatusOr<std::byte*> Scratchpad(std::size_t bytes);
  std::size_t scratchpad_bytes() const { return scratchpad_.size(); }  // held

  static std::string Version();  // "oneDNN 2.6.3 avx512_core"

 private:
  struct Entry {
    Key key;
    std::unique_ptr<CachedOperation> operation;
  };
  CachedOperation* Find(const Key& key);
  CachedOperation& Insert(const Key& key, std::unique_ptr<CachedOperation> operation);

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive_attr attributes_;
  Arena scratchpad_;
  std::list<Entry> entries_;  // most recently used first
  absl::flat_hash_map<Key, std::list<Entry>::iterator> index_;
};

// A weight tensor in the layout that a primitive prefers. Where that is the door's own layout nothing is copied.
class PreferredWeights {
 public:
  PreferredWeights() = default;
  PreferredWeights(OneDnn& onednn, const dnnl::memory::desc& door, const dnnl::memory::desc& preferred);

  // The door's weights in the preferred layout; reordered when the address or the generation is another than last time.
  absl::StatusOr<const void*> Import(OneDnn& onednn, const void* door, std::uint64_t generation);
  // Where a primitive writes its result, which Export then brings to the door's layout. Either may be the door itself.
  void* Target(void* door) { return import_ ? buffer_.data() : door; }
  absl::Status Export(OneDnn& onednn, void* door);

 private:
  Step import_, export_;
  Arena buffer_;
  const void* source_ = nullptr;
  std::uint64_t generation_ = 0;
};

// Runs a callable that may throw dnnl::error or std::bad_alloc.
template <class Body>
absl::Status Guarded(const char* operation, const Body& body) {
  try {
    return body();
  } catch (const dnnl::error& error) {
    return absl::InternalError(std::string("[") + operation + "] oneDNN: " + error.what());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(std::string("[") + operation + "] out of memory");
  }
}

}  // namespace evenkeel::kernels::cpu
