#!/usr/bin/env python3
"""Plants violations in a small tree of its own and expects tidy.py to name each, and nothing else."""

import pathlib
import tempfile
import unittest

import tidy

FLOORS = """set(EVENKEEL_ROOMS core config protocol metrics chief
    transport)
set(EVENKEEL_EDGES_core "")
set(EVENKEEL_EDGES_config "")
set(EVENKEEL_EDGES_protocol "")
set(EVENKEEL_EDGES_metrics "")
set(EVENKEEL_EDGES_chief protocol
    config)
set(EVENKEEL_EDGES_transport protocol)
"""
HEADER = "// What it is.\n#pragma once\n"


class TidyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve() / "checkout"
        self.write("cmake/floors.cmake", FLOORS)

    def write(self, relative, text):
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def violations(self):
        return tidy.Checker(self.root).check()

    def expect(self, relative, text, *rules):
        """The file alone gives one violation for each of `rules`, at the file."""
        self.write(relative, text)
        found = self.violations()
        (self.root / relative).unlink()
        self.assertEqual([line.split("[")[1].split("]")[0] for line in found], list(rules), found)
        for line in found:
            self.assertTrue(line.startswith(relative + ":"), line)

    def test_a_clean_tree_has_no_violation(self):
        self.write("src/chief/a.cc", '#include "chief/a.h"\n#include "evenkeel/chief/a.h"\n#include "evenkeel/core/x.h"\n'
                                     '#include "evenkeel/protocol/x.h"\n#include <vector>\n// never sleep_for\n')
        self.write("src/chief/a.h", HEADER)
        self.write("include/evenkeel/chief/a.h", HEADER + '#include "evenkeel/config/x.h"\n')
        self.write("tests/unit/chief/a_test.cc", '#include "chief/a.h"\n#include "evenkeel/transport/x.h"\n')
        self.write("src/transport/grpc/a.cc", "#include <grpcpp/grpcpp.h>\n#include \"chief.grpc.pb.h\"\n")
        self.write("src/protocol/a.cc", '#include "protocol/a.pb.h"\n')
        self.write("src/core/log.cc", "#include <spdlog/spdlog.h>\n")
        self.write("apps/main.cc", "#include <CLI/CLI.hpp>\nint main() {\n}\n")
        self.assertEqual(self.violations(), [])

    def test_an_edge_that_is_not_allowed(self):
        self.expect("src/protocol/a.cc", '#include "evenkeel/chief/x.h"\n', "edge")
        self.expect("include/evenkeel/core/a.h", HEADER + '#include "evenkeel/config/x.h"\n', "edge")
        self.expect("src/chief/a.cc", "#include <evenkeel/transport/x.h>\n", "edge")
        self.expect("src/transport/grpc/a.cc", '#include "evenkeel/metrics/x.h"\n', "edge")

    def test_a_private_header_outside_its_room(self):
        self.expect("src/chief/a.cc", '#include "protocol/a.h"\n', "private")
        self.expect("include/evenkeel/chief/a.h", HEADER + '#include "chief/a.h"\n', "private")
        self.expect("apps/a.cc", '#include "chief/a.h"\n', "private")
        self.expect("tests/unit/chief/a_test.cc", '#include "config/a.h"\n', "private")

    def test_a_third_party_type_beyond_its_fence(self):
        for include in ["grpcpp/server.h", "x.grpc.pb.h", "x.pb.h", "google/protobuf/message.h", "Eigen/Core",
                        "dnnl.hpp", "cuda_runtime.h", "cudnn.h", "nccl.h", "CLI/CLI.hpp", "spdlog/spdlog.h",
                        "absl/synchronization/mutex.h"]:
            self.expect("src/chief/a.cc", f"#include <{include}>\n", "fence")
        self.expect("src/transport/tcp.cc", "#include <grpcpp/server.h>\n", "fence")
        self.expect("include/evenkeel/protocol/a.h", HEADER + '#include "x.pb.h"\n', "fence")
        self.expect("src/config/a.h", HEADER + "#include <nlohmann/json.hpp>\n", "fence")
        self.expect("src/config/a.h", HEADER + "#include <nlohmann/json_fwd.hpp>\n")
        self.expect("include/evenkeel/config/a.h", HEADER + "#include <nlohmann/json_fwd.hpp>\n", "fence")

    def test_a_decision_that_is_not_pure(self):
        self.expect("src/chief/a.cc", "auto now = std::chrono::steady_clock::now();\n", "pure")
        self.expect("src/chief/a.cc", "Clock::Real().Now();\n", "pure")
        self.expect("src/ps/a.cc", "std::thread t(f);\n", "pure")

    def test_a_sleep(self):
        self.expect("src/core/a.cc", "std::this_thread::sleep_for(x);\n", "sleep")
        self.expect("apps/a.cc", "usleep(5);\n", "sleep")
        self.expect("src/core/a.cc", "  ::sleep(1);\n", "sleep")

    def test_a_main_that_is_too_long(self):
        self.expect("apps/a.cc", "int main() {\n" + "  f();\n" * 97 + "}\n")
        self.expect("apps/a.cc", "int main() {\n" + "  f();\n" * 98 + "}\n", "main")

    def test_a_file_that_is_too_long(self):
        self.expect("src/core/a.cc", "\n" * 800)
        self.expect("src/core/a.cc", "\n" * 801, "length")
        self.expect("cmake/a.cmake", "\n" * 801, "length")

    def test_a_header_without_purpose_or_guard(self):
        self.expect("src/core/a.h", "#pragma once\n", "header")
        self.expect("include/evenkeel/core/a.h", "// What it is.\n", "header")

    def test_a_path_of_one_machine(self):
        self.expect("README.md", "cd /home/me/evenkeel\n", "path")
        self.expect("configs/a.json", '{"a": "/root/data"}\n', "path")
        self.expect("src/core/a.cc", f'auto x = "{self.root}/data";\n', "path")
        self.expect("docker/Dockerfile", "COPY a ${HOME}/root/data\n")

    def test_a_folder_that_is_no_checkout(self):
        self.assertEqual(tidy.main([str(self.root / "src")]), 2)


if __name__ == "__main__":
    unittest.main()
