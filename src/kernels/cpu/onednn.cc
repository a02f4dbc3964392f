#include "kernels/cpu/onednn.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/status.h"

namespace evenkeel::kernels::cpu {
namespace {

// Enough for every layer of a large model at a few batch sizes.
constexpr std::size_t kEntriesMax = 256;

const char* IsaName(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::all:
      return "all";
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "isa";
  }
}

}  // namespace

Step::Step(const OneDnn& onednn, dnnl::primitive primitive, const dnnl::memory::desc& scratchpad,
           const std::vector<Argument>& arguments)
    : primitive_(std::move(primitive)), scratchpad_bytes_(scratchpad.get_size()) {
  memories_.reserve(arguments.size() + 1);
  for (const Argument& argument : arguments) {
    memories_.emplace_back(argument.desc, onednn.engine(), nullptr);
    arguments_.push_back({argument.kind, memories_.back().get()});
  }
  if (scratchpad_bytes_ == 0) return;
  memories_.emplace_back(scratchpad, onednn.engine(), nullptr);
  arguments_.push_back({DNNL_ARG_SCRATCHPAD, memories_.back().get()});
}

absl::Status Step::Run(OneDnn& onednn, std::span<const void* const> addresses) {
  EK_CHECK(addresses.size() + (scratchpad_bytes_ > 0 ? 1 : 0) == memories_.size());
  std::size_t i = 0;
  dnnl_status_t status = dnnl_success;
  // oneDNN takes inputs and outputs alike as non-const.
  auto bind = [&](const void* address) {
    if (status == dnnl_success) status = dnnl_memory_set_data_handle(memories_[i++].get(), const_cast<void*>(address));
  };
  for (const void* address : addresses) bind(address);
  if (scratchpad_bytes_ > 0) {
    EK_ASSIGN_OR_RETURN(std::byte * scratchpad, onednn.Scratchpad(scratchpad_bytes_));
    bind(scratchpad);
  }
  if (status == dnnl_success) {
    status = dnnl_primitive_execute(primitive_.get(), onednn.stream().get(), static_cast<int>(arguments_.size()),
                                    arguments_.data());
  }
  if (status == dnnl_success) status = dnnl_stream_wait(onednn.stream().get());
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN failed with status ", static_cast<int>(status)));
}

OneDnn::OneDnn() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  attributes_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes_.set_fpmath_mode(dnnl::fpmath_mode::strict);
}

CachedOperation* OneDnn::Find(const Key& key) {
  auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().operation.get();
}

CachedOperation& OneDnn::Insert(const Key& key, std::unique_ptr<CachedOperation> operation) {
  if (entries_.size() >= kEntriesMax) {
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({key, std::move(operation)});
  index_[key] = entries_.begin();
  return *entries_.front().operation;
}

absl::StatusOr<std::byte*> OneDnn::Scratchpad(std::size_t bytes) {
  if (bytes > scratchpad_.size()) {
    scratchpad_ = Arena();
    EK_ASSIGN_OR_RETURN(scratchpad_, Arena::Allocate(bytes));
  }
  return scratchpad_.data();
}

std::string OneDnn::Version() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrFormat("oneDNN %d.%d.%d %s:%#x", version->major, version->minor, version->patch,
                         IsaName(dnnl::get_effective_cpu_isa()), static_cast<unsigned>(dnnl::get_effective_cpu_isa()));
}

PreferredWeights::PreferredWeights(OneDnn& onednn, const dnnl::memory::desc& door,
                                   const dnnl::memory::desc& preferred) {
  if (door == preferred) return;
  auto make = [&](const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
    dnnl::reorder::primitive_desc pd(onednn.engine(), from, onednn.engine(), to, onednn.attributes());
    return Step(onednn, dnnl::reorder(pd), pd.scratchpad_desc(), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  };
  import_ = make(door, preferred);
  export_ = make(preferred, door);
  absl::StatusOr<Arena> buffer = Arena::Allocate(preferred.get_size());
  if (!buffer.ok()) throw std::bad_alloc();
  buffer_ = *std::move(buffer);
}

absl::StatusOr<const void*> PreferredWeights::Import(OneDnn& onednn, const void* door, std::uint64_t generation) {
  if (!import_) return door;
  if (source_ != door || generation_ != generation) {
    EK_RETURN_IF_ERROR(import_.Run(onednn, {door, buffer_.data()}));
    source_ = door;
    generation_ = generation;
  }
  return buffer_.data();
}

absl::Status PreferredWeights::Export(OneDnn& onednn, void* door) {
  return export_ ? export_.Run(onednn, {buffer_.data(), door}) : absl::OkStatus();
}

}  // namespace evenkeel::kernels::cpu
