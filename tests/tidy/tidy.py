#!/usr/bin/env python3
"""Checks the tree against the rules of the house and prints one line a violation.

tidy.py [ROOT]    Exit code: 0 clean, 1 violations, 2 wrong input.

Rules:
  edge      a room includes only doors of the rooms that cmake/floors.cmake allows it, and core's
  private   "ROOM/x.h" is included only inside src/ROOM, its unit tests and its benchmarks
  fence     a third-party type stays in its folders
  pure      src/chief and src/ps read no clock, start no thread and draw no random numbers of the system
  sleep     nothing in src and apps sleeps: it waits for something, with a deadline
  main      each main() of apps has less than 100 lines
  length    no file has more than 800 lines
  header    a header opens with a comment on what it is for, and has #pragma once
  path      nothing names a home folder or the folder of this checkout
"""

import pathlib
import re
import sys

FOLDERS = ["apps", "benchmarks", "cmake", "configs", "docker", "include", "proto", "src", "tests", ".ci"]
CODE = {".cc", ".h", ".cu", ".cuh"}
TEXT = CODE | {".cmake", ".json", ".md", ".proto", ".py", ".sh", ".txt", ".in", ".yaml", ".yml"}
LINES_MAX = 800
MAIN_LINES_MAX = 99

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')

# What an include path starts with or ends in, and the folders where it may stand.
FENCES = [
    ("gRPC", re.compile(r"^grpc(pp|\+\+)?/|\.grpc\.pb\.h$"), ["src/transport/grpc/"]),
    ("generated protobuf", re.compile(r"\.pb\.h$|^google/protobuf/"),
     ["src/config/", "src/protocol/", "src/data/", "src/transport/grpc/", "src/metrics/"]),
    ("Eigen and oneDNN", re.compile(r"^(eigen3/)?Eigen/|^(oneapi/)?dnnl"), ["src/kernels/reference/", "src/kernels/cpu/"]),
    ("CUDA", re.compile(r"^(cuda|cudnn|cublas|nccl|curand|nvrtc|nvToolsExt|cooperative_groups)"), ["src/kernels/cuda/"]),
    ("CLI11", re.compile(r"^CLI/"), ["apps/"]),
    ("spdlog", re.compile(r"^spdlog/|^fmt/"), ["src/core/"]),
    ("absl::Mutex (ThreadSanitizer cannot see into it; use evenkeel/core/mutex.h)",
     re.compile(r"^absl/synchronization/"), []),
]
SLEEP = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep|SleepFor)\b|(?<![\w.>:])(::)?sleep\(")
IMPURE = re.compile(r"\b(Clock::Real|std::j?thread|std::async|random_device|RandomNonce)\b|_clock::now\b")
HOME = re.compile(r"(?<![\w.$}])/(home/[a-z_]|root/)")


def read_edges(root):
    """{room: rooms it may include}, itself and core among them."""
    text = (root / "cmake" / "floors.cmake").read_text(encoding="utf-8")
    rooms = re.search(r"set\(EVENKEEL_ROOMS\s+([^)]*)\)", text).group(1).split()
    edges = {room: {room, "core"} for room in rooms}
    for room, allowed in re.findall(r"set\(EVENKEEL_EDGES_(\w+)\s+([^)]*)\)", text):
        edges[room] |= {other for other in allowed.replace('"', " ").split()}
    return edges


def tree_files(root):
    """Regular text files of the tree with their paths relative to it, in order."""
    found = [path for path in root.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (root / folder).rglob("*") if path.is_file()]
    for path in sorted(found):
        relative = path.relative_to(root).as_posix()
        if "__pycache__" not in relative and (path.suffix in TEXT or path.suffix == ""):
            yield relative, path


def without_comments(text):
    """Code with comments blanked, line numbers kept. Good enough for searches of names."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group(0).count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def room_of(relative, edges):
    """The room that a source file or door belongs to, or None."""
    match = re.match(r"(?:src|include/evenkeel)/(\w+)/", relative)
    return match.group(1) if match and match.group(1) in edges else None


def may_include_private(relative, room):
    return (relative.startswith((f"src/{room}/", f"tests/unit/{room}/", f"benchmarks/{room}_"))
            or (relative.startswith(("tests/", "benchmarks/")) and not relative.startswith("tests/unit/")))


class Checker:
    def __init__(self, root):
        self.root = root
        self.edges = read_edges(root)
        self.violations = []
        # A folder of its own only: a checkout at /src must not make that word a violation.
        self.checkout = None
        if len(root.parts) > 2:
            self.checkout = re.compile(r"(?<![\w.$}])" + re.escape(root.as_posix()) + r"(?![\w-])")

    def report(self, rule, relative, line, message):
        self.violations.append(f"{relative}:{line}: [{rule}] {message}")

    def check(self):
        for relative, path in tree_files(self.root):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # test data
            self.check_text(relative, text)
            if path.suffix in CODE:
                self.check_code(relative, text)
        return self.violations

    def check_text(self, relative, text):
        lines = text.count("\n")
        if lines > LINES_MAX and relative != "LICENSE":
            self.report("length", relative, lines, f"{lines} lines; at most {LINES_MAX}: split it")
        if relative.startswith("tests/tidy/"):
            return  # its planted violations
        for number, line in enumerate(text.splitlines(), 1):
            if HOME.search(line) or (self.checkout and self.checkout.search(line)):
                self.report("path", relative, number, "names a folder of one machine; use a relative path or a variable")

    def check_code(self, relative, text):
        code = without_comments(text)
        for number, line in enumerate(code.splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                self.check_include(relative, number, match.group(1))
            if relative.startswith(("src/", "apps/")) and SLEEP.search(line):
                self.report("sleep", relative, number, "sleeps; wait on a condition with a deadline instead")
            if relative.startswith(("src/chief/", "src/ps/")) and IMPURE.search(line):
                self.report("pure", relative, number, "reads a clock, starts a thread or draws from the system; "
                            "pass `now` in, return actions")
        if relative.endswith((".h", ".cuh")) and relative.startswith(("include/", "src/")):
            self.check_header(relative, text)
        if relative.startswith("apps/"):
            self.check_main(relative, code)

    def check_include(self, relative, number, include):
        room = room_of(relative, self.edges)
        door = re.match(r"evenkeel/(\w+)/", include)
        if door:
            if room and door.group(1) not in self.edges[room]:
                self.report("edge", relative, number, f"{room} may not use {door.group(1)}; see cmake/floors.cmake")
            return
        private = include.split("/")[0]
        if "/" in include and private in self.edges and not include.endswith(".pb.h"):
            if not may_include_private(relative, private):
                self.report("private", relative, number, f'"{include}" is private to src/{private}')
            return
        self.check_fences(relative, number, include)

    def check_fences(self, relative, number, include):
        if not relative.startswith(("src/", "include/", "apps/")):
            return
        for name, pattern, folders in FENCES:
            if pattern.search(include):
                if not relative.startswith(tuple(folders)):
                    where = ", ".join(folders) if folders else "nowhere"
                    self.report("fence", relative, number, f"<{include}>: {name} allowed in: {where}")
                return
        forward = include == "nlohmann/json_fwd.hpp" and relative.startswith("src/")
        if include.startswith("nlohmann/") and relative.endswith(".h") and not forward:
            self.report("fence", relative, number, f"<{include}>: only in .cc files; json_fwd.hpp in headers of src")

    def check_header(self, relative, text):
        if not text.startswith("//"):
            self.report("header", relative, 1, "opens with no comment on what it is for")
        if "#pragma once" not in text:
            self.report("header", relative, 1, "has no #pragma once")

    def check_main(self, relative, code):
        lines = code.splitlines()
        for begin, line in enumerate(lines):
            if re.match(r"int main\(", line):
                end = next((i for i in range(begin, len(lines)) if lines[i].startswith("}")), len(lines))
                if end - begin + 1 > MAIN_LINES_MAX:
                    self.report("main", relative, begin + 1,
                                f"main() has {end - begin + 1} lines; at most {MAIN_LINES_MAX}: parse, wire, run")


def main(arguments):
    default = pathlib.Path(__file__).resolve().parents[2]
    root = pathlib.Path(arguments[0]).resolve() if arguments else default
    if not (root / "cmake" / "floors.cmake").is_file():
        print(f"tidy: {root} holds no cmake/floors.cmake", file=sys.stderr)
        return 2
    violations = Checker(root).check()
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
