// Watches for a file whose appearing says that this machine will be taken away, as the agents of spot markets write it.
//
// Threading: a thread of its own, from Start to destruction; `on_notice` is called there, once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace evenkeel::apps {

class NoticeFile {
 public:
  // `on_notice` gets a sentence with the file's name and its first line; at once where the file is there already.
  // Errors: kInvalidArgument when the file's folder cannot be read.
  static absl::StatusOr<std::unique_ptr<NoticeFile>> Start(const std::string& path,
                                                           std::function<void(const std::string&)> on_notice);
  ~NoticeFile();
  NoticeFile(const NoticeFile&) = delete;
  NoticeFile& operator=(const NoticeFile&) = delete;

 private:
  NoticeFile(std::string path, std::function<void(const std::string&)> on_notice);
  void Run();
  bool AwaitChange(int timeout_ms);

  const std::string path_;
  const std::function<void(const std::string&)> on_notice_;
  int watch_ = -1;  // inotify; -1 where there is none: then the file is looked for once a second
  int stop_ = -1;   // eventfd
  std::thread thread_;
};

}  // namespace evenkeel::apps
