"""What dies is started again: launch, agent, a trace of machines that come and go; and status that follows a job."""
import json
import os
import re
import signal
import time

import harness
from harness import check

FAST = ["--set", "membership.lease_ms=2000", "--set", "membership.renew_ms=400", "--set", "membership.drain_ms=2000",
        "--set", "membership.chief_timeout_ms=20000"]
EPOCHS = 1000
LONG = [*FAST, "--set", f"train.epochs={EPOCHS}", "--set", "checkpoint.every_commits=100"]
ENDLESS = [*LONG, "--set", "train.epochs=100000"]


def check_exact(job, epochs=EPOCHS):
    summary = job.summary()
    check(summary["status"] == "finished", summary)
    check(summary["samples_per_epoch"] == [480] * epochs, summary["samples_per_epoch"])
    check(summary["samples_trained"] == 480 * epochs, summary["samples_trained"])


def pid_in(run, pattern):
    return int(run.wait_for(pattern).group(1))


def test_launch_starts_again_what_was_killed(job):
    run = job.launch("--ps", "2", "--nnodes", "1:2", *LONG, "--monitor-interval", "0.1")
    job.wait_for_log("chief-0.log", "checkpoint g1-c200 is complete")
    for name in ["worker:0", "ps:1", "chief:0"]:
        os.kill(job.pid_of(name), signal.SIGKILL)
        run.wait_for(rf"{name} ended with signal 9 \(Killed\); starts again in [0-9.]+ s \(restart 1 of 3\)")
        run.wait_for(rf"{name} runs again, process \d+")
        log = name.replace(":", "-") + ".log"
        job.wait_for_log(log, {"worker:0": "(?s)admitted.*admitted", "ps:1": "(?s)serves workers.*serves workers",
                               "chief:0": "(?s)all 2 servers hold version.*all 2 servers hold version"}[name])
    run.expect(0)
    check_exact(job)
    job.expect_nothing_left()


def test_launch_gives_up_when_too_few_workers_are_left(job):
    run = job.launch("--nnodes", "2:2", *ENDLESS, "--max-restarts", "0")
    job.wait_for_log("worker-1.log", "admitted with rank")
    os.kill(job.pid_of("worker:1"), signal.SIGKILL)
    check(run.wait(30) == 1, run.output())
    check("worker:1 ended with signal 9 (Killed); it is not started again" in run.output(), run.output())
    check("1 of at least 2 are left to train; all stop" in run.output(), run.output())
    job.expect_nothing_left()


def test_an_agent_runs_its_tasks_and_a_killed_worker_comes_back(job):
    epochs = 150
    arguments = [*LONG, "--set", f"train.epochs={epochs}"]
    cluster = job.cluster(ps=1, workers=2)
    path = job.write("cluster.json", json.dumps(cluster))
    rest = [job.role(task, cluster, *arguments) for task in ["chief:0", "ps:0"]]
    logs = job.path("agent-logs")
    agent = job.start("agent", ["evenkeel", "agent", "--cluster", path, "--role", "worker", "--experiment",
                                job.experiment, "--log-dir", logs, "--monitor-interval", "0.1", *arguments])
    pid = pid_in(agent, r"worker:0 started, process (\d+)")
    agent.wait_for("worker:1 started, process")
    rest[0].wait_for("worker:0.*admitted|admitted.*worker:0")
    os.kill(pid, signal.SIGKILL)
    agent.wait_for("worker:0 runs again, process")
    status = job.start("status", ["evenkeel", "status", "--watch", "--interval-seconds", "0.05", "--chief",
                                  cluster["cluster"]["chief"][0]])
    for process in [*rest, agent, status]:
        process.expect(0)
    check(os.path.exists(os.path.join(logs, "worker-1.log")), os.listdir(logs))
    check("the job has ended: finished" in status.output(), status.output())
    check_exact(job, epochs)
    job.expect_nothing_left()


def test_an_agent_that_is_told_to_stop_lets_all_leave(job):
    cluster = job.cluster(ps=1, workers=1)
    path = job.write("cluster.json", json.dumps(cluster))
    agent = job.start("agent", ["evenkeel", "agent", "--cluster", path, "--experiment", job.experiment,
                                *ENDLESS])
    agent.wait_for(r"worker:0.*admitted with rank 0")
    extra = job.start("extra", ["evenkeel", "agent", "--chief", cluster["cluster"]["chief"][0], "--workers", "1",
                                "--experiment", job.experiment, *ENDLESS])
    extra.wait_for("admitted with rank 1")
    extra.popen.send_signal(signal.SIGTERM)
    extra.expect(0, 20)
    agent.popen.send_signal(signal.SIGTERM)
    agent.expect(0, 20)
    check(job.summary()["status"] == "stopped", job.summary())
    job.expect_nothing_left()


def test_an_agent_runs_a_program_with_tf_config(job):
    cluster = job.cluster(ps=1, workers=2)
    path = job.write("cluster.json", json.dumps(cluster))
    out = job.path("tasks")
    agent = job.start("agent", ["evenkeel", "agent", "--cluster", path, "--role", "worker", "--nproc", "2", "--",
                                "sh", "-c", f'echo "$TF_CONFIG" >> {out}'])
    agent.expect(0, 10)
    with open(out) as file:
        configs = [json.loads(line) for line in file]
    check(sorted(c["task"]["index"] for c in configs) == [0, 1], configs)
    check(all(c["cluster"] == cluster["cluster"] and c["task"]["type"] == "worker" for c in configs), configs)
    mark = job.path("mark")
    once = job.start("agent", ["evenkeel", "agent", "--", "sh", "-c", f"test -e {mark} || {{ touch {mark}; exit 7; }}"])
    once.expect(0, 10)
    check("worker:0 ended with exit code 7; starts again" in once.output(), once.output())
    wrong = job.start("agent", ["evenkeel", "agent", "--max-restarts", "0", "--", "sh", "-c", "exit 7"])
    wrong.expect(7, 10)
    nothing = job.start("agent", ["evenkeel", "agent", "--", "no-such-program"])
    nothing.expect(2, 10)
    check("no-such-program" in nothing.output(), nothing.output())


def test_a_trace_drives_the_workers(job):
    trace = job.write("trace.csv", "0,add,a\n0,add,b\n0,add,c\n6000,remove,a\n9000,add,d\n12000,remove,b\n"
                                   "15000,remove,c\n18000,add,e\n")
    run = job.launch("--ps", "1", *ENDLESS, "--availability", trace, "--time-scale", "6", "--max-workers", "2")
    run.wait_for("the trace is over; 2 workers stay", 20)
    said = re.findall(r"worker:\d (?:comes|goes) with \w+", run.output())
    check(said == ["worker:0 comes with a", "worker:1 comes with b", "worker:0 goes with a", "worker:0 comes with c",
                   "worker:1 goes with b", "worker:1 comes with d", "worker:0 goes with c", "worker:0 comes with e"], said)
    check("starts again" not in run.output(), run.output())
    run.popen.send_signal(signal.SIGTERM)
    run.expect(130, 20)
    summary = job.summary()
    epochs = summary["samples_per_epoch"]
    check(summary["status"] == "stopped" and epochs[:-1] == [480] * (len(epochs) - 1), summary)
    job.expect_nothing_left()
    broken = job.write("broken.csv", "0,add,a\n1,stop,a\n")
    job.launch("--availability", broken).expect(2)


def test_status_watch_ends_when_the_chief_is_away(job):
    start = time.monotonic()
    status = job.start("status", ["evenkeel", "status", "--watch", "--timeout-seconds", "0.5", "--chief",
                                  f"127.0.0.1:{harness.free_port()}"])
    status.expect(4, 10)
    check(time.monotonic() - start < 10, "it waited too long")


def test_status_watch_notices_that_a_chief_was_killed(job):
    cluster = job.cluster(ps=1, workers=1)
    roles = [job.role(task, cluster, *ENDLESS) for task in ["chief:0", "ps:0", "worker:0"]]
    roles[2].wait_for("admitted with rank 0")
    status = job.start("status", ["evenkeel", "status", "--watch", "--interval-seconds", "0.05", "--timeout-seconds", "1",
                                  "--chief", cluster["cluster"]["chief"][0]])
    status.wait_for(r"step \d+")
    roles[0].popen.kill()
    status.expect(4, 10)


def test_an_order_is_carried_out_after_the_chief_was_started_again(job):
    run = job.launch("--ps", "1", "--workers", "1", *ENDLESS, "--monitor-interval", "0.1")
    job.wait_for_log("worker-0.log", "admitted with rank 0")
    os.kill(job.pid_of("chief:0"), signal.SIGKILL)
    run.wait_for("chief:0 runs again, process")
    port = re.search(r"chief at (127.0.0.1:\d+)", run.output()).group(1)
    job.wait_for_log("worker-0.log", "taken in as incarnation.*(?s:.*)taken in as incarnation|goes on")
    order = job.start("scale", ["evenkeel", "scale", "--ps", "2", "--chief", port])
    order.expect(0, 10)
    run.wait_for("ps:1 is added, process")
    job.wait_for_log("ps-1.log", "place 1 of 2|serves g")
    run.popen.send_signal(signal.SIGTERM)
    run.expect(130, 20)
    job.expect_nothing_left()


harness.main(globals())
