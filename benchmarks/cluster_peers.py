#!/usr/bin/env python3
"""Two workers and a server beside PyTorch's DDP and TensorFlow's parameter servers, in turn on the same machine.

All sides train the models of train_pytorch.py with SGD and momentum: two workers of one thread each, 128 samples a
worker and step. Ours is a job of `evenkeel launch` in BSP that reads its samples from files; the others have one batch
in memory. DDP has no server: its two processes sum their gradients over gloo. TensorFlow's ParameterServerStrategy is
asynchronous: an update is made of one worker's batch, nobody waits for anybody, and examples/s are all workers'.

Each peer runs in each of its modes first; the fastest is compared. Its processes are stopped (SIGSTOP) while it is not
their turn. Peers are those that the Python which runs this can import; without any this says so and ends with 0.
"""
import argparse
import datetime
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from heterogeneity import read_steps
from train_pytorch import peer_environment, torch_model, torch_step

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "cluster"))
import harness  # noqa: E402

WORKERS, BATCH, CLASSES = 2, 128, 10
EPOCH = {"mlp": 240 * WORKERS * BATCH, "cnn": 40 * WORKERS * BATCH, "resnet20": 40 * WORKERS * BATCH}  # samples
WARM_UP_SECONDS = 2.0  # of ours, after its first commit
LEAST_COMMITS = 4      # that are measured, however slow they are
ANSWER_SECONDS = 900   # a side that says nothing for so long does not work; peers compile first
STEPS_AN_ORDER = {"mlp": 8}  # that TensorFlow's coordinator tells a worker at once; else 1
IMPORTS = {"ddp": "torch", "tensorflow": "tensorflow"}
MODES = {"ddp": ("eager", "channels_last", "compile"), "tensorflow": ("keras", "fused")}
# The first one is told what to do.
TASKS = {"ddp": ("0", "1"), "tensorflow": ("chief:0", "ps:0", "worker:0", "worker:1")}


def write_experiment(folder, model):
    """Synthetic samples, and an experiment that does nothing but train on them."""
    rng, count = random.Random(1), EPOCH[model]
    path = lambda name: os.path.join(folder, f"{model}-{name}")
    if model == "mlp":
        size = lambda number: number.to_bytes(4, "big")
        with open(path("images"), "wb") as file:
            file.write(size(0x803) + size(count) + size(28) + size(28) + rng.randbytes(count * 28 * 28))
        with open(path("labels"), "wb") as file:
            file.write(size(0x801) + size(count) + bytes(rng.randrange(CLASSES) for _ in range(count)))
        source = {"idx": {"images": path("images"), "labels": path("labels")}}
    else:
        with open(path("images"), "wb") as file:
            file.writelines(bytes([rng.randrange(CLASSES)]) + rng.randbytes(3 * 32 * 32) for _ in range(count))
        source = {"cifar10": {"files": [path("images")]}}
    relu = lambda kind, **fields: {kind: {**fields, "activation": "relu"}}
    conv = lambda filters: relu("conv2d", filters=filters, kernel=3, padding="same")
    output = {"dense": {"units": CLASSES}}
    if model == "mlp":
        network = {"layers": [{"flatten": {}}, relu("dense", units=512), relu("dense", units=512), output]}
    elif model == "cnn":
        network = {"layers": [conv(32), conv(64), {"max_pool": {"kernel": 2}}, {"flatten": {}},
                              relu("dense", units=128), output]}
    else:
        with open(os.path.join(ROOT, "configs", "experiments", "cifar_resnet20.json")) as file:
            network = json.load(file)["model"]
    with open(path("experiment.json"), "w") as file:
        json.dump({"name": model, "model": {**network, "loss": "softmax_cross_entropy"},
                   "input": {"train": source, "normalize": "scale", "classes": CLASSES},
                   "train": {"epochs": 1000000, "global_batch_size": WORKERS * BATCH, "sync": {"mode": "bsp"},
                             "optimizer": {"momentum": {"momentum": 0.9}}, "schedule": {"learning_rate": 0.01}},
                   "checkpoint": {"every_seconds": 3600}, "batching": {"mode": "off", "gradnorm_window": 0}}, file)
    return path("experiment.json")


def our_rate(options, experiment):
    """Examples/s between the commits of a stretch, once the job has warmed up."""

    def stretch(steps):
        begin = steps[0]["seconds"] + WARM_UP_SECONDS if steps else 0
        steps = [step for step in steps if step["seconds"] >= begin]
        end = [step["seconds"] >= begin + options.seconds for step in steps[LEAST_COMMITS:]]
        return steps[:LEAST_COMMITS + end.index(True) + 1] if any(end) else []

    job = harness.Job(argparse.Namespace(bin=options.bin, source=ROOT))
    try:
        more = [word for field in options.set for word in ("--set", field)]
        launch = job.launch("--ps", "1", "--workers", str(WORKERS), "--threads", "1", *more, experiment=experiment)
        metrics = os.path.join(job.model_dir, "metrics.csv")
        until = time.monotonic() + WARM_UP_SECONDS + options.seconds + ANSWER_SECONDS
        time.sleep(WARM_UP_SECONDS + options.seconds)  # nothing of ours looks on meanwhile
        steps = []
        while not steps:
            if time.monotonic() > until or launch.popen.poll() is not None:
                sys.exit(f"cluster_peers: the job does not train\n{job.logs()}")
            time.sleep(0.5)
            steps = stretch(read_steps(metrics))
        launch.popen.send_signal(signal.SIGINT)
        launch.expect(130)
    finally:
        job.close()
    return sum(step["samples"] for step in steps[1:]) / (steps[-1]["seconds"] - steps[0]["seconds"])


def ddp_side(arguments):
    """Rank 0 prints examples/s for each number of seconds on stdin, and tells the other one how many steps to make."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(arguments.task)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{arguments.ports.split(',')[0]}", rank=rank,
                            world_size=WORKERS, timeout=datetime.timedelta(days=1))
    model, x, y = torch_model(arguments.model, arguments.mode, BATCH)
    # Each process keeps its own moving averages: one exchange less in a step.
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    step = torch_step(model, x, y, arguments.mode)

    def seconds_of(steps):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        dist.barrier()
        return time.perf_counter() - begin

    seconds_of(5)
    step_seconds = seconds_of(5) / 5
    order = torch.zeros(1, dtype=torch.int64)  # steps; 0: the end
    if rank == 0:
        print("ready", flush=True)
    while True:
        if rank == 0:
            line = sys.stdin.readline()
            order[0] = max(3, round(float(line) / step_seconds)) if line else 0
        dist.broadcast(order, 0)
        if order == 0:
            return
        seconds_of(2)
        step_seconds = seconds_of(int(order)) / int(order)
        if rank == 0:
            print(WORKERS * BATCH / step_seconds, flush=True)


def keras_model(name):
    from tensorflow.keras import Model, layers

    conv = lambda x, filters: layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    dense = lambda x, units: layers.Dense(units, activation="relu")(x)
    normed = lambda x, filters, kernel, stride: layers.BatchNormalization()(
        layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x))
    x = inputs = layers.Input((784,) if name == "mlp" else (32, 32, 3))
    if name == "mlp":
        x = dense(dense(x, 512), 512)
    elif name == "cnn":
        x = dense(layers.Flatten()(layers.MaxPooling2D()(conv(conv(x, 32), 64))), 128)
    else:
        x = layers.ReLU()(normed(x, 16, 3, 1))
        for filters, stride in [(16 << g, 2 if g > 0 and b == 0 else 1) for g in range(3) for b in range(3)]:
            short = x if stride == 1 else normed(x, filters, 1, stride)
            x = normed(layers.ReLU()(normed(x, filters, 3, stride)), filters, 3, 1)
            x = layers.ReLU()(layers.Add()([x, short]))
        x = layers.GlobalAveragePooling2D()(x)
    return Model(inputs, layers.Dense(CLASSES)(x))


def tensorflow_side(arguments):
    """The coordinator prints examples/s for each number of seconds on stdin; server and workers wait for its end."""
    import tensorflow as tf

    ports = [f"127.0.0.1:{port}" for port in arguments.ports.split(",")]
    cluster = tf.train.ClusterSpec({"chief": ports[:1], "ps": ports[1:2], "worker": ports[2:]})
    kind, index = arguments.task.split(":")
    # A worker that has but one thread between operations waits for itself, as TensorFlow's guide says.
    if kind != "chief":
        threads = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        server = tf.distribute.Server(cluster, job_name=kind, task_index=int(index), protocol="grpc", config=threads)
        sys.stdin.read()
        del server
        os._exit(0)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = keras_model(arguments.model)
        variables = model.trainable_variables
        if arguments.mode == "keras":
            optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
            optimizer.build(variables)
        else:  # one operation a variable on the server, where Keras's has several
            optimizer = tf.compat.v1.train.MomentumOptimizer(0.01, 0.9)
    targets = variables if arguments.mode == "keras" else [variable.value for variable in variables]
    steps = STEPS_AN_ORDER.get(arguments.model, 1)
    shape = (BATCH, *model.input_shape[1:])

    def dataset():
        return tf.data.Dataset.from_tensors((tf.random.normal(shape), tf.random.uniform(
            (BATCH,), maxval=CLASSES, dtype=tf.int32))).repeat()

    def train(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), targets)))

    @tf.function
    def order(batches):
        begin = tf.timestamp()
        for _ in tf.range(steps):
            strategy.run(train, args=next(batches))
        return begin

    batches = iter(coordinator.create_per_worker_dataset(dataset))

    def order_seconds(count):
        """Between the beginnings of two orders of any worker, while all are busy."""
        begun = [coordinator.schedule(order, args=(batches,)) for _ in range(count + WORKERS + 1)]
        coordinator.join()
        begun = sorted(begin.fetch() for begin in begun)[WORKERS:]
        return (begun[-1] - begun[0]) / count

    order_seconds(4)
    seconds = order_seconds(4)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = order_seconds(max(4, round(float(line) / seconds)))
        print(BATCH * steps / seconds, flush=True)


class Peer:
    """Its processes in one mode, alive from interval to interval so that what compiles does so once."""

    def __init__(self, name, model, mode):
        ports = ",".join(map(str, harness.free_ports(len(TASKS[name]))))
        environment = {**peer_environment(1), "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "",
                       "TORCHINDUCTOR_COMPILE_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self.errors = tempfile.TemporaryFile("w+")
        self.processes = [subprocess.Popen(
            [sys.executable, __file__, "--side", name, "--task", task, "--ports", ports, "--model", model, "--mode",
             mode], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
            for task in TASKS[name]]

    def works(self):
        """Waits until it can be told what to do."""
        works = self.answer() == "ready"
        self.signal(signal.SIGSTOP)
        return works

    def answer(self):
        """The next line of the process that is told what to do; empty where none comes."""
        output = self.processes[0].stdout
        return output.readline().strip() if select.select([output], [], [], ANSWER_SECONDS)[0] else ""

    def signal(self, number):
        for process in self.processes:
            process.send_signal(number)

    def rate(self, seconds):
        self.signal(signal.SIGCONT)
        self.processes[0].stdin.write(f"{seconds}\n")
        self.processes[0].stdin.flush()
        rate = self.answer()
        self.signal(signal.SIGSTOP)
        return float(rate) if rate else sys.exit(f"cluster_peers: a peer ended: {self.why()}")

    def why(self):
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return lines[-1] if lines else "it says nothing"

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def compare(options, name, model, experiment):
    peers, rates = {}, {}
    try:
        for mode in MODES[name]:
            if mode == "channels_last" and model == "mlp":
                continue
            peers[mode] = peer = Peer(name, model, mode)
            if peer.works():
                rates[mode] = peer.rate(options.seconds)
            else:
                print(f"{name} {mode} does not run {model}: {peer.why()}", file=sys.stderr)
                peer.end()
        if not rates:
            sys.exit(f"cluster_peers: {name} runs in none of its modes")
        best = max(rates, key=rates.get)
        for mode in rates:
            if mode != best:
                peers[mode].end()
        ours, theirs = [], []
        for _ in range(options.intervals):
            ours.append(our_rate(options, experiment))
            theirs.append(peers[best].rate(options.seconds))
    finally:
        for peer in peers.values():
            peer.end()
    ratios = [our / their for our, their in zip(ours, theirs)]
    row = {"model": model, "peer": name, "mode": best, "modes": rates, "ours": statistics.median(ours),
           "theirs": statistics.median(theirs), "ratio": statistics.median(ratios), "ratios": ratios}
    print(f"{model:<9} {name:<11} {row['ours']:>10.0f} {row['theirs']:>10.0f} {row['ratio']:>7.2f}  {best}", flush=True)
    return row


def version(name):
    """Of what the peer needs; None where this Python cannot import it."""
    module = IMPORTS[name]
    run = subprocess.run([sys.executable, "-c", f"import {module}; print({module}.__version__)"], capture_output=True,
                         text=True, env=peer_environment(1))
    return run.stdout.strip() if run.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"), help="folder of our programs")
    parser.add_argument("--models", default=",".join(EPOCH))
    parser.add_argument("--peers", default=",".join(MODES))
    parser.add_argument("--seconds", type=float, default=10, help="of an interval")
    parser.add_argument("--intervals", type=int, default=5, help="of each side, in turn")
    parser.add_argument("--set", action="append", default=[], help="further fields of our experiment")
    parser.add_argument("--json", metavar="FILE", help="file for the table")
    for name in ("--side", "--task", "--ports", "--model", "--mode"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return {"ddp": ddp_side, "tensorflow": tensorflow_side}[options.side](options)
    for what, known in (("models", EPOCH), ("peers", MODES)):
        setattr(options, what, getattr(options, what).split(","))
        for name in getattr(options, what):
            if name not in known:
                parser.error(f"--{what}: '{name}' is not one of {', '.join(known)}")
    versions = {name: version(name) for name in options.peers}
    for name in options.peers:
        if versions[name] is None:
            print(f"cluster_peers: {IMPORTS[name]} is not installed here; {name} is left out", file=sys.stderr)
    peers = [name for name in options.peers if versions[name]]
    if not peers:
        print("cluster_peers: nothing is compared", file=sys.stderr)
        return 0
    if not os.path.exists(os.path.join(options.bin, "evenkeel")):
        sys.exit(f"cluster_peers: there is no evenkeel in {options.bin}; `./dev build release` makes it, or give --bin")
    print(", ".join(f"{IMPORTS[name]} {versions[name]}" for name in peers) +
          f"; {WORKERS} workers of one thread, batch {BATCH} each, examples/s")
    print(f"{'model':<9} {'peer':<11} {'evenkeel':>10} {'peer':>10} {'ratio':>7}  mode")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left behind
    with tempfile.TemporaryDirectory(prefix="evenkeel_cluster_peers_") as folder:
        rows = []
        for model in options.models:
            experiment = write_experiment(folder, model)
            rows += [compare(options, name, model, experiment) for name in peers]
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"versions": versions, "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
