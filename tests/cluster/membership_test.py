"""Workers that come and go: a pause beyond the lease, strangers, too few, too many, orders to leave."""
import json
import os
import re
import signal
import subprocess
import time

import harness
from harness import check

FAST = ["--set", "membership.lease_ms=1500", "--set", "membership.renew_ms=300", "--set", "membership.drain_ms=4000",
        "--set", "train.epochs=1000000"]


def records(job):
    output = subprocess.run([os.path.join(job.bin, "..", "tests", "log_facts"), job.model_dir], check=True,
                            capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def start(job, cluster, tasks, *more):
    return {task: job.role(task, cluster, *FAST, *more) for task in tasks}


def start_all(job, *more, workers=2, ps=2):
    cluster = job.cluster(ps=ps, workers=workers)
    tasks = [f"worker:{i}" for i in range(workers)] + [f"ps:{i}" for i in range(ps)] + ["chief:0"]
    return cluster["cluster"]["chief"][0], cluster, start(job, cluster, tasks, *more)


def joiner(job, name, chief, *more):
    """An unlisted worker that knows nothing but the chief's address."""
    return job.start(name, ["evenkeel-worker", "--chief", chief, *more])


def status(job, chief):
    process = job.start("status", ["evenkeel", "status", "--chief", chief, "--json"])
    process.expect(0)
    return json.loads(process.output())


def stop(job, processes):
    """The chief is told to stop; all end well and every epoch is exact."""
    processes["chief:0"].popen.send_signal(signal.SIGTERM)
    for process in processes.values():
        process.expect(0, 20)
    epochs = job.summary()["samples_per_epoch"]
    check(set(epochs[:-2]) <= {480}, epochs)


def commits_from_now(job, chief, count):
    """Until the job has made so many commits more."""
    goal = status(job, chief)["commit"] + count
    until = time.monotonic() + harness.DEADLINE_SECONDS
    while status(job, chief)["commit"] < goal:
        check(time.monotonic() < until, "the job stands still")
        time.sleep(0.05)


def test_a_worker_paused_beyond_its_lease_changes_nothing_and_joins_again(job):
    chief, _, running = start_all(job)
    worker = running["worker:1"]
    worker.wait_for("admitted with rank 1")
    commits_from_now(job, chief, 5)
    worker.stop()
    running["chief:0"].wait_for("worker:1 is fenced: its lease ended")
    commits_from_now(job, chief, 20)
    worker.popen.send_signal(signal.SIGCONT)
    woke = time.monotonic()
    running["chief:0"].wait_for("worker:1 is fenced(.|\n)*worker:1 admitted with rank 1")
    print(f"      admitted again {time.monotonic() - woke:.2f} s after it woke")
    commits_from_now(job, chief, 20)
    stop(job, running)
    check("joining again as a new incarnation" in worker.output(), worker.output())

    log = records(job)
    lives = [r["incarnation"] for r in log if r["record"] == "admission" and r["name"] == "worker:1"]
    fenced = [i for i, r in enumerate(log) if r["record"] == "fence" and r["incarnation"] == lives[0]]
    check(len(lives) == 2 and lives[1] > lives[0] and len(fenced) == 1, (lives, fenced))
    before = max(r["commit"] for r in log[:fenced[0]] if r["record"] == "commit")
    late = [u for r in log[fenced[0]:] if r["record"] == "commit" for u in r["updates"] if u["incarnation"] == lives[0]]
    # What every server had before the fence may still commit, with the step that was in flight; nothing else does.
    check(len(late) <= 1 and all(u["bound_at"] <= before for u in late), late)
    check(any(u["incarnation"] == lives[1] for r in log if r["record"] == "commit" for u in r["updates"]), lives)
    # Nor did the servers take anything else in: their checkpoints are what the log's commits give.
    replay = job.start("replay", ["evenkeel", "replay", "--model-dir", job.model_dir])
    replay.expect(0)
    check("bit for bit" in replay.output(), replay.output())


def test_members_of_two_jobs_whose_chiefs_swap_addresses_are_refused(job):
    jobs = {}
    for name in ["a", "b"]:
        job.model_dir = job.path(name)
        jobs[name] = start_all(job, workers=1, ps=1)
    for _, _, running in jobs.values():
        running["worker:0"].wait_for("admitted with rank")
        running["chief:0"].popen.kill()
        running["chief:0"].wait()
    for name, other in [("a", "b"), ("b", "a")]:
        swapped = dict(jobs[name][1], model_dir=job.path(other))
        jobs[name][2]["chief:0"] = job.role("chief:0", swapped, *FAST)
    for _, _, running in jobs.values():
        for task in ["worker:0", "ps:0"]:
            running[task].expect(3, 30)
            check(re.search("job [0-9a-f]{32}.* job [0-9a-f]{32}|job [0-9a-f]{32}, the chief's is [0-9a-f]{32}",
                            running[task].output()), running[task].output())


def test_an_old_worker_of_a_finished_job_is_refused_by_the_next_one(job):
    patience = ["--set", "membership.join_timeout_ms=3000"]  # the next job's worker:1 is never its own
    _, cluster, old = start_all(job, *patience)
    old["worker:1"].wait_for("admitted with rank")
    old["worker:1"].stop()
    old["chief:0"].wait_for("worker:1 is fenced")
    stop(job, {name: process for name, process in old.items() if name != "worker:1"})
    job.model_dir = job.path("next")
    running = start(job, dict(cluster, model_dir=job.model_dir), ["worker:0", "ps:0", "ps:1", "chief:0"],
                    *patience)
    running["worker:0"].wait_for("admitted with rank")
    old["worker:1"].popen.send_signal(signal.SIGCONT)
    old["worker:1"].expect(3, 30)
    check("the sender belongs to job" in old["worker:1"].output(), old["worker:1"].output())

    other = job.role("worker:1", cluster, *FAST, *patience, "--set", "train.seed=2")
    other.expect(3, 30)
    check("they differ in train.seed" in other.output(), other.output())
    stop(job, running)


def test_below_workers_min_the_job_waits_and_a_joiner_with_only_the_chiefs_address_lets_it_go_on(job):
    chief, _, running = start_all(job, "--set", "membership.workers_min=2", workers=3)
    running["worker:0"].wait_for("admitted with rank")
    commits_from_now(job, chief, 10)
    for task in ["worker:1", "worker:2"]:
        running[task].popen.kill()
        running.pop(task).wait()
    running["chief:0"].wait_for("waiting for workers: 1 of at least 2 are here")
    running["worker:0"].wait_for("waiting for workers: 1 of at least 2 are here, at most [0-9.]+ s")
    check("1 of at least 2" in status(job, chief)["waiting_for"], "the status does not say so")
    running["fourth"] = joiner(job, "fourth", chief)
    running["fourth"].wait_for("admitted with rank 1")
    commits_from_now(job, chief, 10)
    stop(job, running)
    check("experiment linear of job" in running["fourth"].output(), running["fourth"].output())


def test_of_four_joiners_above_workers_max_one_stands_by_until_a_place_frees(job):
    chief, _, running = start_all(job, "--set", "membership.workers_max=3", workers=1)
    running["worker:0"].wait_for("admitted with rank")
    drain = job.start("drain", ["evenkeel", "drain", "worker:0", "--chief", chief])
    drain.expect(0)
    running.pop("worker:0").expect(0, 20)
    joiners = [joiner(job, f"joiner{i}", chief) for i in range(4)]
    for process in joiners:
        process.wait_for("admitted with rank|waiting for a place")
    standing_by = [p for p in joiners if "admitted with rank" not in p.output()]
    trained = [p for p in joiners if p not in standing_by]
    check(len(standing_by) == 1, [p.output() for p in joiners])
    ranks = {re.search(r"admitted with rank (\d)", p.output()).group(1): p for p in trained}
    check(set(ranks) == {"0", "1", "2"}, ranks)
    # All learned of one membership, numbered by the chief.
    epochs = re.findall(r"admitted with rank \d in membership epoch (\d+)", running["chief:0"].output())
    check(len(set(epochs)) == len(epochs) == 4, epochs)
    ranks["1"].popen.send_signal(signal.SIGTERM)
    ranks["1"].expect(0, 20)
    standing_by[0].wait_for("admitted with rank 1")
    commits_from_now(job, chief, 10)
    running.update({f"joiner{i}": p for i, p in enumerate(joiners) if p is not ranks["1"]})
    stop(job, running)


def test_drain_and_notice_file_are_orderly_leaves(job):
    chief, cluster, running = start_all(job, workers=2)
    notice = job.path("notice")
    running["spot"] = joiner(job, "spot", chief, "--notice-file", notice)
    for task in ["spot", "worker:0", "worker:1"]:
        running[task].wait_for("admitted with rank")
    nobody = job.start("drain", ["evenkeel", "drain", "worker:9", "--chief", chief])
    nobody.expect(2)
    check("worker:0" in nobody.output() and "ps:1" in nobody.output(), nobody.output())
    server = job.start("drain", ["evenkeel", "drain", "ps:0", "--chief", chief])
    drain = job.start("drain", ["evenkeel", "drain", "worker:1", "--chief", chief])
    drain.expect(0)
    check(server.wait() in (0, 3), server.output())
    running.pop("worker:1").expect(0, 20)
    running["chief:0"].wait_for("worker:1 left: evenkeel drain")
    job.write("notice", "the machine goes in 120 s\n")
    running.pop("spot").expect(0, 20)
    running["chief:0"].wait_for("left: notice file .*notice appeared: the machine goes in 120 s")
    commits_from_now(job, chief, 10)
    stop(job, running)


def test_a_server_that_is_taken_for_the_chief_is_named(job):
    _, cluster, processes = start_all(job, workers=1)
    processes["worker:0"].wait_for("admitted with rank")
    server = cluster["cluster"]["ps"][1]
    commands = [["evenkeel", "status"], ["evenkeel", "drain", "worker:0"], ["evenkeel", "scale", "--ps", "1"],
                ["evenkeel-worker"]]
    for command in commands:
        lost = job.start(command[-1], [*command, "--chief", server])
        lost.expect(2, 20)
        check(f"{server} is a parameter server (evenkeel-ps), not a chief" in lost.output(), lost.output())
    stop(job, processes)


def test_a_worker_that_knows_only_an_address_waits_for_the_chief_with_a_deadline(job):
    nobody = f"127.0.0.1:{harness.free_port()}"
    process = joiner(job, "joiner", nobody, "--chief-timeout-seconds", "1.5")
    process.expect(4, 20)
    check(f"waiting for the chief at {nobody}, at most 1.5 s" in process.output(), process.output())
    told = joiner(job, "joiner", nobody)
    told.wait_for("waiting for the chief")
    told.popen.send_signal(signal.SIGTERM)
    told.expect(0, 10)


harness.main(globals())
