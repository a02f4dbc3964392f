#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "evenkeel/core/digest.h"
#include "evenkeel/core/status.h"
#include "evenkeel/metrics/sinks.h"
#include "tb_event.pb.h"

namespace evenkeel {
namespace {

// Beyond this the buffer goes to the file without waiting for Flush.
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
constexpr int kMaxNamesTried = 1000;

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

void AppendLittleEndian(std::uint64_t value, int bytes, std::string& out) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void AppendRecord(const tensorboard::Event& event, std::string& out) {
  const std::string payload = event.SerializeAsString();
  std::string length;
  AppendLittleEndian(payload.size(), 8, length);
  out += length;
  AppendLittleEndian(MaskedCrc32c(AsBytes(length)), 4, out);
  out += payload;
  AppendLittleEndian(MaskedCrc32c(AsBytes(payload)), 4, out);
}

double Seconds(WallTime time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

}  // namespace

struct EventFileWriter::State {
  const Clock* clock;
  std::unique_ptr<WritableFile> file;
  std::string buffer;
  // The first failure; after a record that was written in part, nothing that follows could be read.
  absl::Status failed;

  absl::Status Drain() {
    if (!failed.ok()) return failed;
    if (buffer.empty()) return absl::OkStatus();
    failed = file->Append(AsBytes(buffer));
    buffer.clear();
    return failed;
  }
};

EventFileWriter::EventFileWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}

EventFileWriter::~EventFileWriter() {
  // The last records reach the file if they can; whoever must know calls Flush.
  state_->Drain().IgnoreError();
}

absl::StatusOr<std::unique_ptr<EventFileWriter>> EventFileWriter::Open(Storage& storage, const std::string& folder,
                                                                       const Clock& clock, std::string_view suffix) {
  EK_RETURN_IF_ERROR(storage.MakeFolder(folder));
  const double now = Seconds(clock.WallNow());
  std::string base = absl::StrFormat("events.out.tfevents.%010d.%s", static_cast<std::int64_t>(now), HostName());
  if (!suffix.empty()) absl::StrAppend(&base, ".", std::string(suffix));
  auto state = std::make_unique<State>();
  state->clock = &clock;
  // A job that restarts within the second must not write into its predecessor's file.
  for (int attempt = 0; state->file == nullptr; ++attempt) {
    const std::string name = attempt == 0 ? base : absl::StrCat(base, ".", attempt);
    auto file = storage.Open(JoinPath(folder, name), Storage::Create::kExclusive);
    if (file.ok()) {
      state->file = *std::move(file);
    } else if (!absl::IsAlreadyExists(file.status()) || attempt == kMaxNamesTried) {
      return file.status();
    }
  }
  tensorboard::Event event;
  event.set_wall_time(now);
  event.set_file_version("brain.Event:2");
  AppendRecord(event, state->buffer);
  EK_RETURN_IF_ERROR(state->Drain());
  return std::unique_ptr<EventFileWriter>(new EventFileWriter(std::move(state)));
}

absl::Status EventFileWriter::Write(std::int64_t step, std::span<const Scalar> scalars) {
  if (scalars.empty()) return state_->failed;
  tensorboard::Event event;
  event.set_wall_time(Seconds(state_->clock->WallNow()));
  event.set_step(step);
  for (const Scalar& scalar : scalars) {
    tensorboard::Summary::Value* value = event.mutable_summary()->add_value();
    value->set_tag(scalar.tag);
    value->set_simple_value(static_cast<float>(scalar.value));
  }
  AppendRecord(event, state_->buffer);
  return state_->buffer.size() >= kBufferBytes ? state_->Drain() : state_->failed;
}

absl::Status EventFileWriter::Flush() {
  EK_RETURN_IF_ERROR(state_->Drain());
  return state_->file->Sync();
}

}  // namespace evenkeel
