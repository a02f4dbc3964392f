#!/usr/bin/env python3
"""Installs the project, builds a user's program against the installed package, trains with it.

usage: package_test.py CMAKE BUILD_DIR PROJECT_DIR WORK_DIR
"""

import json
import pathlib
import shutil
import subprocess
import sys


def main():
    cmake, build, project, work = sys.argv[1:]
    work = pathlib.Path(work)
    shutil.rmtree(work, ignore_errors=True)
    prefix = work / "prefix"
    subprocess.run([cmake, "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    cache = dict(
        line.split("=", 1)
        for line in (pathlib.Path(build) / "CMakeCache.txt").read_text().splitlines()
        if "=" in line and not line.startswith(("#", "//"))
    )
    passed_on = [
        f"-D{key.split(':')[0]}={cache[key]}"
        for key in cache
        if key.split(":")[0] in ("CMAKE_BUILD_TYPE", "CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_EXE_LINKER_FLAGS")
    ]
    sanitize = next((value for key, value in cache.items() if key.startswith("EVENKEEL_SANITIZE:")), "")
    if sanitize:
        passed_on.append(f"-DCMAKE_CXX_FLAGS=-fsanitize={sanitize}")
    subprocess.run(
        [cmake, "-S", project, "-B", work / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", *passed_on],
        check=True,
    )
    subprocess.run([cmake, "--build", work / "build"], check=True)
    model_dir = work / "model"
    subprocess.run([work / "build" / "spirals", pathlib.Path(project) / "spirals.json", model_dir], check=True)
    summary = json.loads((model_dir / "summary.json").read_text())
    assert summary["status"] == "finished", summary
    assert summary["samples_per_epoch"] == [2000] * 40, summary["samples_per_epoch"]
    assert summary["train_loss"] < 0.1, f"the custom layer does not learn: loss {summary['train_loss']}"


if __name__ == "__main__":
    main()
