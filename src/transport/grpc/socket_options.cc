#include "transport/grpc/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <grpcpp/version_info.h>

// gRPC exports the mutator's functions but ships no header for them; these are the declarations of its
// src/core/lib/iomgr/socket_mutator.h, as they stand in the version checked here.
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51
#define EVENKEEL_HAS_SOCKET_MUTATOR 1
#include <grpc/support/sync.h>

enum grpc_fd_usage : int;
struct grpc_mutate_socket_info {
  int fd;
  int usage;
};
struct grpc_socket_mutator_vtable {
  bool (*mutate_fd)(int fd, grpc_socket_mutator* mutator);
  int (*compare)(grpc_socket_mutator* mutator1, grpc_socket_mutator* mutator2);
  void (*destroy)(grpc_socket_mutator* mutator);
  bool (*mutate_fd_2)(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator);
};
struct grpc_socket_mutator {
  const grpc_socket_mutator_vtable* vtable;
  gpr_refcount refcount;
};
void grpc_socket_mutator_init(grpc_socket_mutator* mutator, const grpc_socket_mutator_vtable* vtable);
#endif

namespace evenkeel {

#ifdef EVENKEEL_HAS_SOCKET_MUTATOR
namespace {

bool UseCubic(const grpc_mutate_socket_info* info, grpc_socket_mutator*) {
  constexpr char kName[] = "cubic";
  // Where the kernel lacks it the default stays.
  (void)setsockopt(info->fd, IPPROTO_TCP, TCP_CONGESTION, kName, sizeof(kName) - 1);
  return true;
}
int Compare(grpc_socket_mutator*, grpc_socket_mutator*) { return 0; }  // all are alike
void Destroy(grpc_socket_mutator* mutator) { delete mutator; }

constexpr grpc_socket_mutator_vtable kVtable = {nullptr, Compare, Destroy, UseCubic};

}  // namespace

grpc_socket_mutator* NewBulkSocketMutator() {
  auto* mutator = new grpc_socket_mutator;
  grpc_socket_mutator_init(mutator, &kVtable);
  return mutator;
}
#else
grpc_socket_mutator* NewBulkSocketMutator() { return nullptr; }
#endif

}  // namespace evenkeel
