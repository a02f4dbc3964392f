// Tells when files appear in folders, by inotify where the kernel and the file system know it; else, and on network
// file systems, the caller's own look round after the time limit is what finds them.
//
// Threading: Wake is thread-safe; all else from one thread.
#pragma once

#include <string>

#include "evenkeel/core/clock.h"

namespace evenkeel {

class FolderWatch {
 public:
  FolderWatch();
  ~FolderWatch();
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  // Adds a folder; again does no harm, nor does one that is not there.
  void Add(const std::string& folder);
  // Returns after a change, a Wake, or `limit`; a change between Add and Wait counts.
  void Wait(Duration limit);
  void Wake();

 private:
  int inotify_ = -1;
  int wake_ = -1;
};

}  // namespace evenkeel
