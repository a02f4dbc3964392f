// Options of a benchmark program, `--name value` each, and what its table says in JSON.
//
// Errors: a wrong option ends the program with 2 and says which one, its value and what would be right.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace evenkeel::bench {

class Options {
 public:
  struct Known {
    std::string name;      // "threads"
    std::string fallback;  // the value where it is not given
    std::string help;
  };

  Options(const char* program, const char* purpose, std::vector<Known> known)
      : program_(program), purpose_(purpose), known_(std::move(known)) {
    for (const Known& option : known_) values_[option.name] = option.fallback;
  }

  void Parse(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      std::string name = argv[i];
      if (name == "--help" || name == "-h") {
        std::fputs(Help().c_str(), stdout);
        std::exit(0);
      }
      std::string value;
      const std::size_t equals = name.find('=');
      if (equals != std::string::npos) {
        value = name.substr(equals + 1);
        name.resize(equals);
      } else if (i + 1 < argc) {
        value = argv[++i];
      } else {
        Refuse("'" + name + "' has no value");
      }
      if (name.rfind("--", 0) != 0 || !values_.contains(name.substr(2))) Refuse("there is no option '" + name + "'");
      values_[name.substr(2)] = value;
    }
  }

  const std::string& Text(const std::string& name) const { return values_.at(name); }

  std::vector<std::string> Texts(const std::string& name) const {
    std::vector<std::string> parts(1);
    for (char c : Text(name)) {
      if (c == ',') {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
    }
    return parts;
  }

  std::int64_t Number(const std::string& name, std::int64_t least, std::int64_t most) const {
    return ToNumber(name, Text(name), least, most);
  }

  std::vector<std::int64_t> Numbers(const std::string& name, std::int64_t least, std::int64_t most) const {
    std::vector<std::int64_t> numbers;
    for (const std::string& text : Texts(name)) numbers.push_back(ToNumber(name, text, least, most));
    return numbers;
  }

  // Writes the rows where --json names a file.
  void WriteJson(const nlohmann::json& rows) const {
    const std::string& path = Text("json");
    if (path.empty()) return;
    std::ofstream out(path);
    out << rows.dump(1) << '\n';
    if (!out.flush()) {
      std::fprintf(stderr, "%s: cannot write %s\n", program_.c_str(), path.c_str());
      std::exit(1);
    }
  }

  [[noreturn]] void Refuse(const std::string& message) const {
    std::fprintf(stderr, "%s: %s; --help lists the options\n", program_.c_str(), message.c_str());
    std::exit(2);
  }

 private:
  std::int64_t ToNumber(const std::string& name, const std::string& text, std::int64_t least, std::int64_t most) const {
    char* end = nullptr;
    errno = 0;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || errno != 0 || value < least || value > most) {
      Refuse("--" + name + " is '" + text + "'; " + std::to_string(least) + " to " + std::to_string(most) +
             " is wanted");
    }
    return value;
  }

  std::string Help() const {
    std::string text = program_ + ": " + purpose_ + "\n";
    for (const Known& option : known_) {
      text += "  --" + option.name + " VALUE   " + option.help;
      if (!option.fallback.empty()) text += " (" + option.fallback + ")";
      text += "\n";
    }
    return text;
  }

  std::string program_, purpose_;
  std::vector<Known> known_;
  std::map<std::string, std::string> values_;
};

}  // namespace evenkeel::bench
