# What the rooms link, as arguments of find_package(): for this build and, installed beside evenkeelConfig.cmake, for a
# user's. Protobuf in MODULE mode: Debian ships no usable config file for it.
set(EVENKEEL_DEPENDENCIES
    "Threads"
    "absl CONFIG"
    "Protobuf MODULE"
    "gRPC CONFIG"
    "spdlog CONFIG"
    "nlohmann_json CONFIG"
    "Eigen3 CONFIG"
    "dnnl CONFIG"
    "OpenMP COMPONENTS CXX"
    "OpenSSL COMPONENTS Crypto"
    "ZLIB")
