"""The promises on real data, with real processes: the same result on any cluster, samples counted once, sync modes."""
import array
import json
import math
import os
import struct
import subprocess

import harness
from harness import Skipped, check, sets

FASHION = "/usr/share/datasets/fashion-mnist"


def experiment(job, name):
    if not os.path.exists(os.path.join(os.environ.get("FASHION_MNIST", FASHION), "train-images-idx3-ubyte.gz")):
        raise Skipped("Fashion-MNIST is not here")
    return os.path.join(job.source, "configs", "experiments", name)


def smooth_experiment(job):
    """fashion_mlp with tanh. A relu's kink makes of a difference in the last bit another gradient now and then, from where on
    the paths part (1 worker, 1 server and another instruction set of oneDNN: 1e-2 after an epoch); of tanh rounding stays
    rounding."""
    with open(experiment(job, "fashion_mlp.json")) as file:
        text = file.read()
    check('"relu"' in text, "fashion_mlp has other activations")
    out = job.path("fashion_mlp_tanh.json")
    with open(out, "w") as file:
        file.write(text.replace('"relu"', '"tanh"'))
    return out


def parameters(job):
    """The newest checkpoint's tensors, as one list a name."""
    out = job.path("parameters.safetensors")
    export = job.start("export", ["evenkeel", "export", "--model-dir", job.model_dir, "--checkpoint", "latest", "--out", out])
    export.expect(0)
    with open(out, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = array.array("f", data[begin:end])
    return tensors


def relative_difference(a, b):
    check(a.keys() == b.keys(), "other tensors")
    difference = sum((x - y) ** 2 for name in a for x, y in zip(a[name], b[name]))
    return math.sqrt(difference / sum(x * x for name in a for x in a[name]))


def records(job):
    output = subprocess.run([os.path.join(job.bin, "..", "tests", "log_facts"), job.model_dir], check=True,
                            capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def commits(job):
    return [record for record in records(job) if record["record"] == "commit"]


def test_any_number_of_workers_and_servers_ends_alike(job):
    file = smooth_experiment(job)
    reference, sums = None, {}
    for workers, servers, name in [(1, 1, "a"), (2, 2, "b"), (4, 3, "c"), (4, 1, "d"), (1, 3, "e"), (2, 2, "b_again")]:
        job.model_dir = job.path(name)
        job.launch("--ps", str(servers), "--workers", str(workers), *sets(train__epochs=1), experiment=file).expect(0)
        sums[name] = job.summary()["parameters_sha256"]
        if name == "b_again":
            continue
        values = parameters(job)
        reference = reference or values
        difference = relative_difference(values, reference)
        print(f"      {workers} workers, {servers} servers: {difference:.2e} from 1 worker, 1 server")
        check(difference <= 1e-5, f"{workers} workers and {servers} servers differ by {difference}")
    check(sums["b"] == sums["b_again"], "the same command gave other bits")


def test_every_sample_counts_once_with_a_batch_that_does_not_divide(job):
    file = experiment(job, "fashion_mlp.json")
    modes = {"bsp": {}, "backup": {"train__sync__backup_workers": 1}, "asp": {"train__sync__mode": "asp"},
             "ssp": {"train__sync__mode": "ssp", "train__sync__staleness": 2}}
    for name, fields in modes.items():
        job.model_dir = job.path(name)
        job.launch("--ps", "2", "--workers", "3", *sets(train__epochs=2, train__global_batch_size=519, **fields),
                   experiment=file).expect(0)
        check(job.summary()["samples_per_epoch"] == [60000, 60000], f"{name}: {job.summary()['samples_per_epoch']}")
        spent = {}
        for commit in commits(job):
            for update in commit["updates"]:
                spent.setdefault(update["epoch"], []).extend(update["positions"])
        for epoch, ranges in spent.items():
            end = 0
            for first, last in sorted(ranges):
                check(first == end, f"{name}: epoch {epoch}: position {end} to {first}")
                end = last
            check(end == 60000, f"{name}: epoch {epoch} ends at {end}")


def test_ssp_keeps_its_bound_and_asp_never_waits(job):
    """Read off the commit log alone: clocks and the commit at which each ticket bound."""
    file = experiment(job, "fashion_mlp.json")
    for mode, staleness in [("ssp", 1), ("asp", None)]:
        job.model_dir = job.path(mode)
        fields = {"train__sync__mode": mode, "train__epochs": 1}
        if staleness is not None:
            fields["train__sync__staleness"] = staleness
        job.launch("--ps", "2", "--workers", "3", *sets(**fields), experiment=file).expect(0)
        log = records(job)
        ranks = {r["incarnation"]: r["rank"] for r in log if r["record"] == "admission"}
        done = {incarnation: [] for incarnation in ranks}
        updates = [(r["commit"], r["updates"][0]) for r in log if r["record"] == "commit"]
        for commit, update in updates:
            check(len(done) == 3, done)
            done[update["incarnation"]].append(commit)
        previous = {}
        for commit, update in updates:
            mine = update["incarnation"]
            if mode == "ssp":
                clocks = {i: sum(1 for c in done[i] if c <= update["bound_at"]) for i in done}
                check(clocks[mine] - min(clocks.values()) <= staleness, f"commit {commit}: bound with clocks {clocks}")
            elif mine in previous:
                check(update["bound_at"] == previous[mine],
                      f"commit {commit}: bound at {update['bound_at']}, its last commit was {previous[mine]}")
            previous[mine] = commit


harness.main(globals())
