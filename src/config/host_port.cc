// Addresses of tasks.
#include <arpa/inet.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "config/concat.h"
#include "evenkeel/config/cluster.h"

namespace evenkeel {
namespace {

using config_internal::Concat;

absl::Status Invalid(std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError(Concat("'", text, "' ", what));
}

bool IsIpv6(std::string_view host) {
  in6_addr ignored;
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &ignored) == 1;
}

bool IsNameOrIpv4(const std::string& host) {
  const auto in = [&](auto predicate) { return std::all_of(host.begin(), host.end(), predicate); };
  if (host.empty() || host.size() > 253) return false;
  if (in([](unsigned char c) { return absl::ascii_isdigit(c) || c == '.'; })) {
    in_addr ignored;
    return inet_pton(AF_INET, host.c_str(), &ignored) == 1;
  }
  return in([](unsigned char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_'; }) &&
         host.front() != '-' && host.front() != '.';
}

// Splits at the last colon. Without brackets an IPv6 address is told from its port only when it has all eight groups.
absl::Status Split(std::string_view text, std::string& host, std::string& port) {
  const std::size_t colon = text.rfind(':');
  if (!text.empty() && text[0] == '[') {
    const std::size_t close = text.find(']');
    if (close == text.npos || close + 1 != colon) return Invalid(text, "is no address; expected [IPv6]:port");
    host = std::string(text.substr(1, close - 1));
    port = std::string(text.substr(colon + 1));
    if (!IsIpv6(host)) return Invalid(text, "has no IPv6 address between its brackets");
    return absl::OkStatus();
  }
  if (colon == text.npos) return Invalid(text, "has no port; expected host:port (port 0 for any free one)");
  host = std::string(text.substr(0, colon));
  port = std::string(text.substr(colon + 1));
  if (host.find(':') != std::string::npos) {
    const bool all_groups = std::count(text.begin(), text.end(), ':') == 8 && host.find("::") == std::string::npos;
    if (all_groups && IsIpv6(host)) return absl::OkStatus();
    return Invalid(text, Concat("does not say where the address ends and the port begins; write an IPv6 address "
                                "in brackets, as [::1]:2222"));
  }
  if (!IsNameOrIpv4(host)) return Invalid(text, Concat("names no host: '", host, "'; expected host:port"));
  return absl::OkStatus();
}

}  // namespace

std::string HostPort::ToString() const {
  return host.find(':') == std::string::npos ? Concat(host, ":", port) : Concat("[", host, "]:", port);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  HostPort out;
  std::string port;
  if (absl::Status status = Split(text, out.host, port); !status.ok()) return status;
  const bool digits = !port.empty() && port.size() <= 5 &&
                      std::all_of(port.begin(), port.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (!digits || !absl::SimpleAtoi(port, &out.port) || out.port > 65535) {
    return Invalid(text, Concat("has the port '", port, "'; expected 0 (any free one) to 65535"));
  }
  return out;
}

absl::StatusOr<HostPort> ParseChiefAddress(std::string_view text) {
  absl::StatusOr<HostPort> address = ParseHostPort(text);
  if (address.ok() && address->port != 0) return address;
  return absl::InvalidArgumentError(
      Concat("--chief '", text, "': expected HOST:PORT, the address at which evenkeel-chief listens"));
}

}  // namespace evenkeel
