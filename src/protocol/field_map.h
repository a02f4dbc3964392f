// Encoding and decoding share one list of fields for each message: a function template
//
//   template <class D> void Map(D& d, In<D, Plain> m, Out<D, pb::Wire> p) { EK_VALUE(a); EK_MESSAGE(b); EK_LIST(c); }
//
// is instantiated with D = Encoder (m -> p) and D = Decoder (p -> m). The struct's members and the proto's fields have
// the same names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "evenkeel.pb.h"
#include "evenkeel/protocol/messages.h"
#include "evenkeel/protocol/wire.h"

namespace evenkeel::wire {

namespace pb = ::evenkeel::v1;

// `text`, with what is not UTF-8 replaced: protobuf's parsers refuse other strings.
std::string Utf8(const std::string& text);

struct Encoder {
  static constexpr bool kEncode = true;

  template <class Tag, class Rep>
  static Rep Value(StrongId<Tag, Rep> id) {
    return id.value();
  }
  static std::string Value(const std::string& text) { return Utf8(text); }
  template <class T>
  requires std::is_arithmetic_v<T>
  static T Value(T value) { return value; }
};

class Decoder {
 public:
  static constexpr bool kEncode = false;

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  // The first failure stays.
  void Fail(absl::string_view field, absl::string_view why) {
    if (ok()) status_ = absl::InvalidArgumentError(absl::StrCat("[decode] field ", field, " ", why));
  }

  template <class Tag, class Rep>
  void Value(const char* field, Rep wire, StrongId<Tag, Rep>& out) {
    out = StrongId<Tag, Rep>(wire);
  }
  void Value(const char* field, const std::string& wire, std::string& out) {
    if (wire.size() > kMaxStringBytes) {
      Fail(field, absl::StrCat("has ", wire.size(), " bytes, at most ", kMaxStringBytes, " are allowed"));
      return;
    }
    out = wire;
  }
  template <class W, class T>
  requires std::is_arithmetic_v<T>
  void Value(const char* field, W wire, T& out) {
    static_assert(std::is_same_v<W, T> || (std::is_integral_v<T> && sizeof(W) == sizeof(T)));
    out = static_cast<T>(wire);
  }
  bool Count(const char* field, int count) {
    if (static_cast<std::size_t>(count) > kMaxListEntries) {
      Fail(field, absl::StrCat("has ", count, " entries, at most ", kMaxListEntries, " are allowed"));
    }
    return ok();
  }

 private:
  absl::Status status_;
};

template <class D, class T>
using In = std::conditional_t<D::kEncode, const T&, T&>;
template <class D, class T>
using Out = std::conditional_t<D::kEncode, T&, const T&>;

// A number, string or id.
#define EK_VALUE(field)                    \
  do {                                     \
    if constexpr (D::kEncode) {            \
      p.set_##field(d.Value(m.field));     \
    } else {                               \
      d.Value(#field, p.field(), m.field); \
    }                                      \
  } while (false)

// An enum whose wire values are the struct's plus one; 0 is unspecified, an error.
#define EK_ENUM(field, wire_type, last)                                                                       \
  do {                                                                                                        \
    if constexpr (D::kEncode) {                                                                               \
      p.set_##field(static_cast<wire_type>(static_cast<int>(m.field) + 1));                                   \
    } else if (static_cast<int>(p.field()) < 1 || static_cast<int>(p.field()) - 1 > static_cast<int>(last)) { \
      d.Fail(#field, absl::StrCat("is ", static_cast<int>(p.field()), ", no known value"));                   \
    } else {                                                                                                  \
      m.field = static_cast<std::remove_cvref_t<decltype(m.field)>>(static_cast<int>(p.field()) - 1);         \
    }                                                                                                         \
  } while (false)

#define EK_MESSAGE(field)                    \
  do {                                       \
    if constexpr (D::kEncode) {              \
      Map(d, m.field, *p.mutable_##field()); \
    } else {                                 \
      Map(d, m.field, p.field());            \
    }                                        \
  } while (false)

// A list of messages.
#define EK_LIST(field)                                                           \
  do {                                                                           \
    if constexpr (D::kEncode) {                                                  \
      for (const auto& entry : m.field) Map(d, entry, *p.add_##field());         \
    } else if (d.Count(#field, p.field##_size())) {                              \
      m.field.reserve(static_cast<std::size_t>(p.field##_size()));               \
      for (const auto& entry : p.field()) Map(d, m.field.emplace_back(), entry); \
    }                                                                            \
  } while (false)

// A list of numbers or ids.
#define EK_VALUES(field)                                                                  \
  do {                                                                                    \
    if constexpr (D::kEncode) {                                                           \
      for (const auto& entry : m.field) p.add_##field(d.Value(entry));                    \
    } else if (d.Count(#field, p.field##_size())) {                                       \
      m.field.reserve(static_cast<std::size_t>(p.field##_size()));                        \
      for (const auto& entry : p.field()) d.Value(#field, entry, m.field.emplace_back()); \
    }                                                                                     \
  } while (false)

// Ids and addresses, shared by messages and log records.

template <class D>
void Map(D& d, In<D, Version> m, Out<D, pb::Version> p) {
  EK_VALUE(generation);
  EK_VALUE(commit);
}
template <class D>
void Map(D& d, In<D, UpdateId> m, Out<D, pb::UpdateId> p) {
  EK_VALUE(term);
  EK_VALUE(incarnation);
  EK_VALUE(sequence);
}
template <class D>
void Map(D& d, In<D, PositionRange> m, Out<D, pb::PositionRange> p) {
  EK_VALUE(begin);
  EK_VALUE(end);
}
template <class D>
void Map(D& d, In<D, ServerAddress> m, Out<D, pb::ServerAddress> p) {
  EK_VALUE(address);
  EK_VALUE(incarnation);
  EK_VALUE(name);
}

// Checks what a RangeList promises.
inline void CheckRanges(Decoder& d, const RangeList& ranges) {
  std::int64_t end = -1;
  for (const PositionRange& range : ranges) {
    if (range.begin < 0 || range.begin <= end || range.end <= range.begin) {
      d.Fail("positions", absl::StrCat("hold [", range.begin, ",", range.end, ") after ", end,
                                       "; ranges must ascend, without overlapping or touching"));
      return;
    }
    end = range.end;
  }
}

template <class D>
void Map(D& d, In<D, CommittedUpdate> m, Out<D, pb::CommittedUpdate> p) {
  EK_MESSAGE(update);
  EK_VALUE(rank);
  EK_VALUE(epoch);
  EK_LIST(positions);
  if constexpr (!D::kEncode) CheckRanges(d, m.positions);
  EK_VALUE(clock);
  EK_VALUE(bound_at);
  EK_LIST(computed_on);
  EK_VALUE(feedback);
}
template <class D>
void Map(D& d, In<D, Decision> m, Out<D, pb::Decision> p) {
  EK_MESSAGE(version);
  EK_VALUE(set);
  EK_VALUE(attempt);
  EK_LIST(updates);
  EK_VALUE(samples);
  EK_VALUE(loss_sum);
  EK_VALUE(learning_rate);
  EK_VALUE(clip_scale);
  EK_VALUE(global_batch_size);
  EK_VALUE(previous_hash);
  EK_VALUE(hash);
}

}  // namespace evenkeel::wire
