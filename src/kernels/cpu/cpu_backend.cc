#include "kernels/cpu/cpu_backend.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "evenkeel/core/status.h"

namespace evenkeel {
namespace kernels::cpu {

CpuBackend::CpuBackend(int threads) : threads_(threads), loops_(ChooseLoops()) { UseThreads(); }

std::string CpuBackend::Fingerprint() const {
  return absl::StrCat("cpu ", OneDnn::Version(), " loops:", loops_.isa, " threads:", threads_);
}

void CpuBackend::UseThreads() const {
  if (omp_get_dynamic() != 0) omp_set_dynamic(0);
  if (omp_get_max_threads() != threads_) omp_set_num_threads(threads_);
}

}  // namespace kernels::cpu

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options) {
  if (options.threads < 1 || options.threads > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("[cpu backend] threads is ", options.threads, "; it must be 1 to 256"));
  }
  std::unique_ptr<Backend> backend;
  EK_RETURN_IF_ERROR(kernels::cpu::Guarded("cpu backend", [&] {
    backend = std::make_unique<kernels::cpu::CpuBackend>(options.threads);
    return absl::OkStatus();
  }));
  return backend;
}

}  // namespace evenkeel
