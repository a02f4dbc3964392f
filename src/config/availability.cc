#include "evenkeel/config/availability.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "config/concat.h"
#include "evenkeel/core/status.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

using config_internal::Concat;
using Json = nlohmann::json;
using Events = std::vector<AvailabilityEvent>;

constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxNodeName = 64;
constexpr std::size_t kMaxAlive = 100000;
constexpr std::size_t kMaxQuoted = 60;                                      // of a wrong line
constexpr std::int64_t kMaxNumber = std::int64_t{10} * 365 * 86400 * 1000;  // ten years of ms

struct Line {
  int number = 0;  // from 1
  absl::string_view text;
};

std::string Quoted(absl::string_view text) {
  text = text.substr(0, std::min(text.size(), kMaxQuoted + 1));
  const auto odd = [](unsigned char byte) { return byte < 0x20 && byte != '\t'; };
  if (std::any_of(text.begin(), text.end(), odd)) return "bytes that are no text (a compressed file? unpack it first)";
  return Concat("'", std::string(text.substr(0, kMaxQuoted)), text.size() > kMaxQuoted ? "...'" : "'");
}

// Errors of one file.
class Place {
 public:
  explicit Place(std::string_view origin) : origin_(origin) {}
  absl::Status Wrong(const Line& line, std::string_view what) const {
    return absl::InvalidArgumentError(Concat(origin_, ": line ", line.number, ": ", what));
  }
  absl::Status WrongField(const Line& line, int field, std::string_view name, std::string_view what) const {
    return absl::InvalidArgumentError(
        Concat(origin_, ": line ", line.number, ", field ", field, " (", name, "): ", what));
  }
  absl::Status Empty() const { return absl::InvalidArgumentError(Concat(origin_, ": the trace has no lines")); }

 private:
  std::string_view origin_;
};

// Those with text in them, without white space around it.
std::vector<Line> Lines(std::string_view text) {
  std::vector<Line> lines;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) lines.push_back({number, line});
  }
  return lines;
}

std::vector<absl::string_view> Fields(absl::string_view line) {
  std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  for (absl::string_view& field : fields) field = absl::StripAsciiWhitespace(field);
  return fields;
}

// Collects events and holds them to what a trace may say.
class Collector {
 public:
  Collector(const Place& place, Events& out) : place_(place), out_(out) {}

  absl::Status Add(const Line& line, std::int64_t at_ms, bool add, std::string node) {
    if (!out_.empty() && at_ms < out_.back().at_ms) {
      return place_.WrongField(line, 1, "ms",
                               Concat(at_ms, " comes after ", out_.back().at_ms, "; times must not go back"));
    }
    if (add && !alive_.insert(node).second) {
      return place_.Wrong(line, Concat("node ", Quoted(node), " is added, but it is there already"));
    }
    if (!add && alive_.erase(node) == 0) {
      return place_.Wrong(line, Concat("node ", Quoted(node), " is removed, but it is not there"));
    }
    if (alive_.size() > kMaxAlive) {
      return place_.Wrong(line, Concat("more than ", kMaxAlive, " nodes are alive"));
    }
    out_.push_back({at_ms, add, std::move(node)});
    return absl::OkStatus();
  }

 private:
  const Place& place_;
  Events& out_;
  std::set<std::string> alive_;
};

absl::Status CheckNode(const Place& place, const Line& line, int field, absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxNodeName) return absl::OkStatus();
  return place.WrongField(line, field, "node",
                          Concat(Quoted(name), " is no name of 1 to ", kMaxNodeName, " characters"));
}

absl::StatusOr<std::int64_t> WholeNumber(const Place& place, const Line& line, int field, std::string_view name,
                                         absl::string_view text) {
  std::int64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= 0 && value <= kMaxNumber) return value;
  return place.WrongField(line, field, name, Concat(Quoted(text), " is no whole number from 0 to ", kMaxNumber));
}

absl::Status ExpectFields(const Place& place, const Line& line, std::size_t have, std::size_t want,
                          std::string_view shape) {
  if (have == want) return absl::OkStatus();
  return place.Wrong(line, Concat(Quoted(line.text), " has ", have, " fields; expected ", want, ": ", shape));
}

absl::StatusOr<Events> ParseNodeEvents(const std::vector<Line>& lines, const Place& place) {
  Events events;
  Collector collector(place, events);
  for (const Line& line : lines) {
    const auto fields = Fields(line.text);
    EK_RETURN_IF_ERROR(ExpectFields(place, line, fields.size(), 3, "ms,add|remove,node"));
    EK_ASSIGN_OR_RETURN(const std::int64_t at_ms, WholeNumber(place, line, 1, "ms", fields[0]));
    if (fields[1] != "add" && fields[1] != "remove") {
      return place.WrongField(line, 2, "action", Concat(Quoted(fields[1]), " is neither add nor remove"));
    }
    EK_RETURN_IF_ERROR(CheckNode(place, line, 3, fields[2]));
    EK_RETURN_IF_ERROR(collector.Add(line, at_ms, fields[1] == "add", std::string(fields[2])));
  }
  return events;
}

absl::StatusOr<Events> ParseEventLists(const std::vector<Line>& lines, const Place& place) {
  Events events;
  Collector collector(place, events);
  for (const Line& line : lines) {
    const Json list = Json::parse(line.text.begin(), line.text.end(), nullptr, false);
    if (!list.is_array() || list.size() < 3) {
      return place.Wrong(line, Concat(Quoted(line.text), R"( is not [ms, "add"|"remove"|..., {"nodes": [..]}])"));
    }
    EK_ASSIGN_OR_RETURN(const std::int64_t at_ms, WholeNumber(place, line, 1, "ms", list[0].dump()));
    if (!list[1].is_string()) {
      return place.WrongField(line, 2, "action", Concat(Quoted(list[1].dump()), " is no text"));
    }
    const std::string action = list[1].get<std::string>();
    if (action != "add" && action != "remove") continue;
    const auto nodes = list[2].is_object() ? list[2].find("nodes") : list[2].end();
    if (!list[2].is_object() || nodes == list[2].end() || !nodes->is_array()) {
      return place.WrongField(line, 3, "nodes", "is no list of names");
    }
    for (const Json& node : *nodes) {
      if (!node.is_string()) return place.WrongField(line, 3, "nodes", Concat(Quoted(node.dump()), " is no name"));
      EK_RETURN_IF_ERROR(CheckNode(place, line, 3, node.get<std::string>()));
      EK_RETURN_IF_ERROR(collector.Add(line, at_ms, action == "add", node.get<std::string>()));
    }
  }
  return events;
}

struct Sample {
  Line line;
  std::int64_t at_ms = 0;
  std::int64_t alive = 0;
};

absl::StatusOr<Events> FromCounts(const std::vector<Sample>& samples, const Place& place) {
  Events events;
  Collector collector(place, events);
  std::int64_t first = 0, next = 0;  // [first, next) are alive
  for (const Sample& sample : samples) {
    while (next - first < sample.alive) {
      EK_RETURN_IF_ERROR(collector.Add(sample.line, sample.at_ms, true, Concat("node", next++)));
    }
    while (next - first > sample.alive) {
      EK_RETURN_IF_ERROR(collector.Add(sample.line, sample.at_ms, false, Concat("node", first++)));
    }
  }
  return events;
}

absl::StatusOr<Events> ParseLiveCounts(const std::vector<Line>& lines, const Place& place) {
  std::vector<Sample> samples;
  for (const Line& line : lines) {
    const auto fields = Fields(line.text);
    EK_RETURN_IF_ERROR(ExpectFields(place, line, fields.size(), 2, "ms,count"));
    Sample sample{line, 0, 0};
    EK_ASSIGN_OR_RETURN(sample.at_ms, WholeNumber(place, line, 1, "ms", fields[0]));
    EK_ASSIGN_OR_RETURN(sample.alive, WholeNumber(place, line, 2, "count", fields[1]));
    if (!samples.empty() && sample.at_ms < samples.back().at_ms) {
      return place.WrongField(line, 1, "ms",
                              Concat(sample.at_ms, " comes after ", samples.back().at_ms, "; times must not go back"));
    }
    samples.push_back(sample);
  }
  return FromCounts(samples, place);
}

// "2021-12-11" with '-' or "11:11:30" with ':'.
std::optional<std::array<int, 3>> Three(absl::string_view text, char separator) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, separator);
  std::array<int, 3> numbers{};
  if (parts.size() != numbers.size()) return std::nullopt;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!absl::SimpleAtoi(parts[i], &numbers[i]) || numbers[i] < 0) return std::nullopt;
  }
  return numbers;
}

absl::StatusOr<Events> ParseDatedCounts(const std::vector<Line>& lines, const Place& place) {
  std::vector<Sample> samples;
  for (const Line& line : lines) {
    const auto fields = Fields(line.text);
    EK_RETURN_IF_ERROR(ExpectFields(place, line, fields.size(), 3, "YYYY-MM-DD, HH:MM:SS, count"));
    const auto date = Three(fields[0], '-');
    const auto day = date ? std::chrono::year_month_day(std::chrono::year((*date)[0]),
                                                        std::chrono::month(static_cast<unsigned>((*date)[1])),
                                                        std::chrono::day(static_cast<unsigned>((*date)[2])))
                          : std::chrono::year_month_day();
    if (!date || !day.ok()) {
      return place.WrongField(line, 1, "date", Concat(Quoted(fields[0]), " is no day as 2021-12-11"));
    }
    const auto time = Three(fields[1], ':');
    if (!time || (*time)[0] > 23 || (*time)[1] > 59 || (*time)[2] > 59) {
      return place.WrongField(line, 2, "time", Concat(Quoted(fields[1]), " is no time of day as 11:11:30"));
    }
    Sample sample{line, 0, 0};
    const std::int64_t seconds = (*time)[0] * 3600 + (*time)[1] * 60 + (*time)[2];
    sample.at_ms = (std::chrono::sys_days(day).time_since_epoch().count() * std::int64_t{86400} + seconds) * 1000;
    EK_ASSIGN_OR_RETURN(sample.alive, WholeNumber(place, line, 3, "count", fields[2]));
    samples.push_back(sample);
  }
  std::stable_sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.at_ms < b.at_ms; });
  const std::int64_t origin_ms = samples.front().at_ms;
  for (Sample& sample : samples) sample.at_ms -= origin_ms;
  return FromCounts(samples, place);
}

}  // namespace

absl::StatusOr<AvailabilityFormat> DetectAvailabilityFormat(std::string_view text, std::string_view origin) {
  const Place place(origin);
  const std::vector<Line> lines = Lines(text);
  if (lines.empty()) return place.Empty();
  if (lines[0].text[0] == '[') return AvailabilityFormat::kEventLists;
  const auto fields = Fields(lines[0].text);
  if (fields.size() == 2) return AvailabilityFormat::kLiveCounts;
  if (fields.size() == 3) {
    return Three(fields[0], '-') ? AvailabilityFormat::kDatedCounts : AvailabilityFormat::kNodeEvents;
  }
  return place.Wrong(lines[0], Concat(Quoted(lines[0].text),
                                      " is of no known trace; expected ms,add|remove,node or ms,count or "
                                      R"([ms, "add"|"remove", {"nodes": [..]}] or YYYY-MM-DD, HH:MM:SS, count)"));
}

absl::StatusOr<Events> ParseAvailability(std::string_view text, std::string_view origin, AvailabilityFormat format) {
  const Place place(origin);
  const std::vector<Line> lines = Lines(text);
  if (lines.empty()) return place.Empty();
  const auto parse = [&]() -> absl::StatusOr<Events> {
    switch (format) {
      case AvailabilityFormat::kNodeEvents:
        return ParseNodeEvents(lines, place);
      case AvailabilityFormat::kEventLists:
        return ParseEventLists(lines, place);
      case AvailabilityFormat::kLiveCounts:
        return ParseLiveCounts(lines, place);
      case AvailabilityFormat::kDatedCounts:
        return ParseDatedCounts(lines, place);
    }
    return absl::InternalError("no such format");
  };
  EK_ASSIGN_OR_RETURN(Events events, parse());
  if (events.empty()) return absl::InvalidArgumentError(Concat(origin, ": no node comes in the whole trace"));
  return events;
}

absl::StatusOr<Events> ParseAvailability(std::string_view text, std::string_view origin) {
  EK_ASSIGN_OR_RETURN(const AvailabilityFormat format, DetectAvailabilityFormat(text, origin));
  return ParseAvailability(text, origin, format);
}

absl::StatusOr<Events> LoadAvailability(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(Concat(path, ": cannot be opened: ", std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> block;
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(Concat(path, ": is longer than ", kMaxFileBytes >> 20, " MiB"));
    }
  }
  if (file.bad()) return absl::InvalidArgumentError(Concat(path, ": cannot be read"));
  return ParseAvailability(text, path);
}

Events CapAvailability(const Events& events, std::size_t max_live) {
  EK_CHECK(max_live >= 1);
  Events capped;
  std::set<std::string> alive;
  std::deque<std::string> waiting;
  for (const AvailabilityEvent& event : events) {
    if (event.add) {
      if (alive.size() < max_live) {
        alive.insert(event.node);
        capped.push_back(event);
      } else {
        waiting.push_back(event.node);
      }
    } else if (alive.erase(event.node) == 0) {
      waiting.erase(std::find(waiting.begin(), waiting.end(), event.node));
    } else {
      capped.push_back(event);
      if (waiting.empty()) continue;
      capped.push_back({event.at_ms, true, waiting.front()});
      alive.insert(std::move(waiting.front()));
      waiting.pop_front();
    }
  }
  return capped;
}

std::size_t MostAlive(const Events& events) {
  std::size_t alive = 0, most = 0;
  for (const AvailabilityEvent& event : events) {
    alive = event.add ? alive + 1 : alive - 1;
    most = std::max(most, alive);
  }
  return most;
}

}  // namespace evenkeel
