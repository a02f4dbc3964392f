// What sets two canonical experiments apart.
#include <set>
#include <string>
#include <vector>

#include "config/json_text.h"
#include "evenkeel/config/experiment.h"
#include "nlohmann/json.hpp"

namespace evenkeel {
namespace {

using nlohmann::json;

void Compare(const json& a, const json& b, const std::string& path, std::size_t limit, std::vector<std::string>& out) {
  if (out.size() >= limit || a == b) return;
  if (a.is_object() && b.is_object()) {
    std::set<std::string> keys;
    for (const auto& [key, value] : a.items()) keys.insert(key);
    for (const auto& [key, value] : b.items()) keys.insert(key);
    for (const std::string& key : keys) {
      const std::string field = config_internal::FieldPath(path, key);
      if (a.contains(key) && b.contains(key)) {
        Compare(a[key], b[key], field, limit, out);
      } else if (out.size() < limit) {
        out.push_back(field);
      }
    }
  } else if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      Compare(a[i], b[i], config_internal::ItemPath(path, i), limit, out);
    }
  } else {
    out.push_back(path);
  }
}

}  // namespace

std::vector<std::string> DifferingFields(std::string_view canonical_a, std::string_view canonical_b, int limit) {
  if (canonical_a == canonical_b || limit <= 0) return {};
  json a, b;
  if (!config_internal::ParseJson(canonical_a, a).ok() || !config_internal::ParseJson(canonical_b, b).ok()) {
    return {"(one of the two texts is not JSON)"};
  }
  std::vector<std::string> out;
  Compare(a, b, "", static_cast<std::size_t>(limit), out);
  return out;
}

}  // namespace evenkeel
