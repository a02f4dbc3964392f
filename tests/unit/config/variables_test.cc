#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "evenkeel/config/experiment.h"

namespace evenkeel {
namespace {

// Sets a variable, and puts the old value back.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

std::string Expanded(const char* text, const std::string& data = "") {
  const auto out = ExpandVariables(text, data);
  return out.ok() ? *out : "refused: " + std::string(out.status().message());
}

TEST_CASE("variables are replaced from the environment", "[config]") {
  const Variable a("EK_TEST_A", "one"), b("EK_TEST_B", nullptr);
  CHECK(Expanded("x/${EK_TEST_A}/${EK_TEST_A}.gz") == "x/one/one.gz");
  CHECK(Expanded("plain $HOME {}") == "plain $HOME {}");
  CHECK(Expanded("${EK_TEST_B}") == "refused: the environment variable EK_TEST_B is not set");
  for (const char* text : {"${", "${}", "${EK_TEST_A", "${A-B}", "${1}"}) {
    INFO(text);
    CHECK_THAT(Expanded(text), Catch::Contains("is not followed by a variable's name"));
  }
}

TEST_CASE("the data folder that is given stands over EVENKEEL_DATA", "[config]") {
  const Variable data("EVENKEEL_DATA", "/from/environment");
  CHECK(Expanded("${EVENKEEL_DATA}/a") == "/from/environment/a");
  CHECK(Expanded("${EVENKEEL_DATA}/a", "/given") == "/given/a");
  const Variable none("EVENKEEL_DATA", nullptr);
  CHECK(Expanded("${EVENKEEL_DATA}/a", "/given") == "/given/a");
  CHECK_THAT(Expanded("${EVENKEEL_DATA}/a"), Catch::Contains("EVENKEEL_DATA is not set; set it, or --data"));
}

TEST_CASE("FASHION_MNIST is the environment's, else the data folder's, else Debian's", "[config]") {
  const std::string folder = std::string(EVENKEEL_BINARY_DIR) + "/tests/fashion_variable";
  std::filesystem::create_directories(folder + "/fashion-mnist");
  const Variable data("EVENKEEL_DATA", nullptr);
  {
    const Variable fashion("FASHION_MNIST", "/mine");
    CHECK(Expanded("${FASHION_MNIST}/f", folder) == "/mine/f");
  }
  const Variable fashion("FASHION_MNIST", nullptr);
  CHECK(Expanded("${FASHION_MNIST}/f", folder) == folder + "/fashion-mnist/f");
  CHECK(Expanded("${FASHION_MNIST}/f", "/nowhere") == "/usr/share/datasets/fashion-mnist/f");
  CHECK(Expanded("${FASHION_MNIST}/f") == "/usr/share/datasets/fashion-mnist/f");
}

}  // namespace
}  // namespace evenkeel
