"""The roles started by hand, in any order, with TF_CONFIG in the environment; and how they end."""
import contextlib
import json
import os
import random
import re
import signal
import time

import harness
from harness import check

FAST = ["--set", "membership.lease_ms=2000", "--set", "membership.renew_ms=400", "--set", "membership.drain_ms=2000",
        "--set", "membership.chief_timeout_ms=5000"]


def test_wine_in_any_order(job):
    data = harness.data_folder("wine-quality/winequality-white.csv")
    experiment = os.path.join(job.source, "configs/experiments/wine_dnn.json")
    cluster = job.cluster(ps=2, workers=2, evaluators=1)
    more = ["--data", data, "--set", "train.epochs=3"]
    starts = [("chief:0", [*more, "--train"]), ("ps:0", more[2:]), ("ps:1", more[2:]), ("worker:0", more),
              ("worker:1", more), ("evaluator:0", more)]
    random.Random(11).shuffle(starts)
    running = [job.role(task, cluster, *arguments, experiment=experiment) for task, arguments in starts]
    for process in running:
        process.expect(0)
    summary = job.summary()
    check(summary["status"] == "finished", summary)
    check(len(set(summary["samples_per_epoch"])) == 1 and len(summary["samples_per_epoch"]) == 3, summary)
    check({worker["id"] for worker in summary["workers"]} == {"chief:0", "worker:0", "worker:1"}, summary["workers"])
    check(summary["eval"]["rmse"] < 1.5, summary["eval"])
    job.expect_nothing_left()


def start_all(job, epochs, *more):
    cluster = job.cluster(ps=2, workers=2)
    arguments = [*FAST, "--set", f"train.epochs={epochs}", *more]
    tasks = ["worker:0", "ps:1", "chief:0", "worker:1", "ps:0"]
    return cluster, arguments, {task: job.role(task, cluster, *arguments) for task in tasks}


def wait_for_checkpoint(chief, generation, commit):
    """One of this commit or, where the disk was slow, of a later one."""
    seen = lambda: [int(c) for c in re.findall(rf"checkpoint g{generation}-c(\d+) is complete", chief.output())]
    until = time.monotonic() + harness.DEADLINE_SECONDS
    while max(seen(), default=0) < commit:
        check(chief.popen.poll() is None and time.monotonic() < until, f"no checkpoint c{commit}:\n{chief.output()}")
        time.sleep(0.05)


@contextlib.contextmanager
def memory_cgroup(megabytes):
    """Yields put(pid), which gives a process that much memory; skips where no control group can be made."""
    name = f"evenkeel-test-{os.getpid()}"
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = os.path.join(root, name)
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            try:
                with open(os.path.join(folder, limit), "w") as file:
                    file.write(str(megabytes << 20))
            except OSError:
                continue

            def put(pid):
                try:
                    with open(os.path.join(folder, "cgroup.procs"), "w") as file:
                        file.write(str(pid))
                except OSError as e:
                    raise harness.Skipped(f"processes cannot be moved to another control group here: {e}") from e

            yield put
            return
        finally:
            os.rmdir(folder)
    raise harness.Skipped("no control group that limits memory can be made here")


def test_no_batch_is_larger_than_what_the_workers_memory_holds(job):
    """With equal batches the limited worker is killed by the kernel in its first step."""
    with open(os.path.join(job.bin, "evenkeel-worker"), "rb") as file:
        if b"libasan.so" in file.read():
            raise harness.Skipped("AddressSanitizer's own memory is larger than the limit")
    experiment = os.path.join(job.source, "configs/experiments/fashion_cnn.json")
    cluster = job.cluster(ps=1, workers=2)
    arguments = ["--set", "train.global_batch_size=4096", "--set", "train.max_commits=3", "--set", "batching.mode=model"]
    with memory_cgroup(250) as put:
        limited = job.role("worker:1", cluster, *arguments, "--threads", "1", experiment=experiment)
        put(limited.popen.pid)
        others = [job.role(task, cluster, *arguments, *more, experiment=experiment)
                  for task, more in (("chief:0", []), ("ps:0", []), ("worker:0", ["--threads", "1"]))]
        for process in [limited, *others]:
            process.expect(0)
    check(job.summary()["samples_trained"] == 3 * 4096, job.summary())
    with open(os.path.join(job.model_dir, "metrics.csv")) as file:
        batches = [int(b) for b in re.findall(r"worker:1 batch=(\d+)", file.read())]
    check(len(batches) == 3 and 0 < max(batches) < 1024, f"batches of the worker with 250 MiB: {batches}")


def test_a_process_with_the_name_of_a_living_member_is_refused(job):
    """As another job's, whose cluster has this one's chief: the member stays, and nothing is rolled back."""
    cluster, arguments, running = start_all(job, 100000)
    running["worker:0"].wait_for("admitted with rank")
    other = job.cluster(ps=2, workers=2)
    other["cluster"]["chief"] = cluster["cluster"]["chief"]
    twins = [job.role(task, other, *arguments) for task in ("ps:1", "worker:1")]
    for twin in twins:
        twin.expect(3, 30)
        check(re.search("another process has the name (ps|worker):1: incarnation", twin.output()), twin.output())
        check(cluster["cluster"]["chief"][0] in twin.output().splitlines()[-1], twin.output())
    running["chief:0"].popen.send_signal(signal.SIGTERM)
    for process in running.values():
        process.expect(0)
    check("is fenced" not in running["chief:0"].output() and "is lost" not in running["chief:0"].output(),
          running["chief:0"].output())
    check(job.summary()["status"] == "stopped" and job.summary()["samples_rolled_back"] == 0, job.summary())


def test_an_unlisted_worker_joins(job):
    cluster, arguments, all_roles = start_all(job, 100000, "--set", "train.max_commits=4000")
    all_roles["worker:0"].wait_for("admitted with rank")
    extra = job.start("extra", ["evenkeel-worker", "--chief", cluster["cluster"]["chief"][0], "--experiment",
                                job.experiment, *arguments])
    for process in [extra, *all_roles.values()]:
        process.expect(0)
    check(len(job.summary()["workers"]) == 3, job.summary()["workers"])


def test_a_killed_server_is_replaced_and_the_job_rolls_back(job):
    """In BSP with the same bits as if nothing had happened; the workers live on."""
    sums = []
    for name, kills in [("whole", 0), ("killed", 2)]:
        job.model_dir = job.path(name)
        cluster, arguments, all_roles = start_all(job, 100000, "--set", "train.max_commits=4000",
                                                  "--set", "checkpoint.every_commits=100")
        for kill in range(kills):
            wait_for_checkpoint(all_roles["chief:0"], kill + 1, 300 * (kill + 1))
            all_roles["ps:1"].popen.kill()
            all_roles["ps:1"].wait()
            all_roles["ps:1"] = job.role("ps:1", cluster, *arguments)
            all_roles["chief:0"].wait_for(f"all 2 servers hold version g{kill + 2}")
        for process in all_roles.values():
            process.expect(0)
        summary = job.summary()
        check(summary["commits"] == 4000 and summary["samples_trained"] == 4000 * 48, summary)
        check(set(summary["samples_per_epoch"]) == {480}, summary["samples_per_epoch"])
        check((summary["samples_rolled_back"] > 0) == (kills > 0), summary["samples_rolled_back"])
        sums.append(summary["parameters_sha256"])
    check(sums[0] == sums[1], "other parameters after the rollbacks")


def test_a_killed_chief_is_started_again_and_the_job_goes_on(job):
    """Servers and workers live on, nothing is trained again, and the bits are those of a job whose chief never died. A
    chief with another experiment in between sends nobody away."""
    sums = []
    for name, kills in [("whole", 0), ("killed", 2)]:
        job.model_dir = job.path(name)
        cluster, arguments, all_roles = start_all(job, 100000, "--set", "train.max_commits=4000",
                                                  "--set", "checkpoint.every_commits=100")
        for kill in range(kills):
            wait_for_checkpoint(all_roles["chief:0"], 1, 300 * (kill + 1))
            all_roles["chief:0"].popen.kill()
            all_roles["chief:0"].wait()
            if kill == 0:
                other = job.role("chief:0", cluster, *arguments, "--set", "train.max_commits=4001")
                other.expect(3)
                check("still runs with another experiment" in other.output(), other.output())
                check("they differ in train.max_commits" in other.output(), other.output())
            all_roles["chief:0"] = job.role("chief:0", cluster, *arguments)
        for process in all_roles.values():
            process.expect(0)
        summary = job.summary()
        check(summary["commits"] == 4000 and summary["samples_trained"] == 4000 * 48, summary)
        check(set(summary["samples_per_epoch"]) == {480}, summary["samples_per_epoch"])
        check(summary["samples_rolled_back"] == 0, summary["samples_rolled_back"])
        check(sum(worker["samples"] for worker in summary["workers"]) == summary["samples_trained"], summary["workers"])
        check(abs(summary["samples_trained"] / summary["wall_seconds"] / summary["examples_per_second"] - 1) < 1e-6,
              "the rate is of other samples or another time than the summary")
        sums.append(summary["parameters_sha256"])
    check(sums[0] == sums[1], "other parameters after the chief's restarts")


def test_chief_and_server_are_killed_together_and_the_workers_live_on(job):
    """Whoever had left before is not awaited, and no commit lacks its row of metrics."""
    cluster = job.cluster(ps=2, workers=3)
    arguments = [*FAST, "--set", "train.epochs=100000", "--set", "train.max_commits=4000", "--set",
                 "checkpoint.every_commits=100"]
    start = lambda task: job.role(task, cluster, *arguments)
    running = {task: start(task) for task in ("chief:0", "ps:0", "ps:1", "worker:0", "worker:1", "worker:2")}
    wait_for_checkpoint(running["chief:0"], 1, 100)
    running["worker:2"].popen.send_signal(signal.SIGTERM)
    running["worker:2"].expect(0)
    for kill in range(3):
        for task in ("ps:1", "chief:0"):
            running[task].popen.kill()
            running[task].wait()
        for task in ("ps:1", "chief:0"):
            running[task] = start(task)
        running["chief:0"].wait_for(r"goes on with \d workers?|checkpoint g\d+-c\d+ is complete")
        awaited = re.findall(r"waiting for .*worker:2.*", running["chief:0"].output())
        check(not awaited, f"who had left is awaited: {awaited}")
    for task in ("chief:0", "ps:0", "ps:1", "worker:0", "worker:1"):
        running[task].expect(0)
    summary = job.summary()
    check(summary["commits"] == 4000 and set(summary["samples_per_epoch"]) == {480}, summary)
    with open(os.path.join(job.model_dir, "metrics.csv")) as file:
        rows = {int(line.split(",")[0]) for line in file.read().splitlines()[1:]}
    check(rows == set(range(1, 4001)), f"no rows of {sorted(set(range(1, 4001)) - rows)[:20]}")


def test_sigterm_to_the_chief_stops_all_in_good_order(job):
    _, _, all_roles = start_all(job, 100000)
    all_roles["worker:0"].wait_for("admitted with rank")
    all_roles["chief:0"].popen.send_signal(signal.SIGTERM)
    for process in all_roles.values():
        process.expect(0, 10)
    check(job.summary()["status"] == "stopped", job.summary())


def await_commit(job, cluster):
    """Something is trained; before, nothing can be lost."""
    until = time.monotonic() + harness.DEADLINE_SECONDS
    while time.monotonic() < until:
        told = job.start("status --json", ["evenkeel", "status", "--chief", cluster["cluster"]["chief"][0], "--json"])
        told.expect(0)
        if json.loads(told.output())["commit"] > 0:
            return
    check(False, "nothing was committed")


def test_a_stop_that_loses_a_server_fails_and_says_what_is_lost(job):
    """The chief can't take its last checkpoint of a server that stands still."""
    cluster, _, all_roles = start_all(job, 100000, "--set", "checkpoint.every_commits=1000000")
    all_roles["chief:0"].wait_for("admitted with rank")
    await_commit(job, cluster)
    all_roles["ps:1"].stop()
    all_roles["chief:0"].popen.send_signal(signal.SIGTERM)
    all_roles["chief:0"].expect(1, 20)
    check("before the last checkpoint was complete: what was trained after g1-c0," in all_roles["chief:0"].output(),
          all_roles["chief:0"].output())
    check(job.summary()["status"] == "failed" and "ps:1 is lost" in job.summary()["reason"], job.summary())
    all_roles["ps:1"].popen.send_signal(signal.SIGCONT)


def test_a_worker_without_a_data_path_in_common_says_so_and_the_chief_too(job):
    cluster = job.cluster(ps=1, workers=1)
    arguments = [*FAST, "--set", "membership.join_timeout_ms=3000"]
    chief = job.role("chief:0", cluster, *arguments)
    job.role("ps:0", cluster, *arguments, "--data-path", "tcp")
    worker = job.role("worker:0", cluster, *arguments, "--data-path", "shm")
    chief.expect(4, 30)
    for process in [chief, worker]:
        check("has the data paths grpc, tcp; allowed here: shm" in process.output(), process.output())
    check("waited 3 s for worker:0; worker:0 has joined (waiting for ps:0 at 127.0.0.1:" in chief.output(),
          chief.output())


def test_killed_chief_ends_all_within_its_timeout(job):
    _, _, all_roles = start_all(job, 100000)
    all_roles["worker:0"].wait_for("admitted with rank")
    all_roles["chief:0"].popen.kill()
    for name, process in all_roles.items():
        if name != "chief:0":
            process.expect(4, 15)
            check("chief" in process.output(), process.output())


def test_sigterm_to_a_worker_is_an_orderly_leave(job):
    _, _, all_roles = start_all(job, 100000)
    all_roles["worker:1"].wait_for("admitted with rank")
    all_roles["worker:1"].popen.send_signal(signal.SIGTERM)
    all_roles["worker:1"].expect(0, 10)
    all_roles["chief:0"].popen.send_signal(signal.SIGTERM)
    for process in all_roles.values():
        process.expect(0, 10)


def test_members_wait_for_the_chief_with_a_deadline(job):
    cluster = job.cluster()
    for task in ["ps:0", "worker:0"]:
        process = job.role(task, cluster, *FAST)
        process.expect(4, 15)
        check(cluster["cluster"]["chief"][0] in process.output(), process.output())


def test_second_signal_ends_a_role_at_once(job):
    process = job.role("worker:0", job.cluster(), "--set", "membership.chief_timeout_ms=60000",
                       "--set", "membership.drain_ms=30000")
    process.wait_for("waiting for the chief")
    process.popen.send_signal(signal.SIGINT)
    process.popen.send_signal(signal.SIGTERM)
    check(process.wait(10) in (0, 130), process.output())


def test_status_of_a_running_job(job):
    cluster, _, all_roles = start_all(job, 100000)
    all_roles["worker:1"].wait_for("admitted with rank")
    chief = cluster["cluster"]["chief"][0]
    status = job.start("status", ["evenkeel", "status", "--chief", chief])
    status.expect(0)
    check("worker:1" in status.output() and "step" in status.output(), status.output())
    ways, until = [[]], time.monotonic() + harness.DEADLINE_SECONDS
    while [] in ways and time.monotonic() < until:  # they come with a renewal
        told = job.start("status --json", ["evenkeel", "status", "--chief", chief, "--json"])
        told.expect(0)
        ways = [worker["data_paths"] for worker in json.loads(told.output())["workers"]]
    check(ways == [["shm", "shm"], ["shm", "shm"]], ways)
    nobody = job.start("status", ["evenkeel", "status", "--chief", f"127.0.0.1:{harness.free_port()}"])
    nobody.expect(4)


harness.main(globals())
