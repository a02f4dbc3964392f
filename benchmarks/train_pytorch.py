#!/usr/bin/env python3
"""Training steps of one worker beside PyTorch's, in turn on the same machine.

Both sides train the same models (784-512-512-10; conv 3x3 32, 64, pool, fc 128, 10 on 32x32x3; ResNet-20) with
SGD and momentum on one synthetic batch. PyTorch runs in each of --modes first; the fastest of them is compared.
Without PyTorch this says so and ends with 0."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODES = ("eager", "channels_last", "compile")


def torch_model(model_name, mode, batch):
    """The model and a batch for it, in the mode's memory format."""
    import torch
    from torch import nn

    torch.manual_seed(1)

    class Block(nn.Module):
        def __init__(self, inputs, filters, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(),
                nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters))
            self.short = nn.Identity() if inputs == filters else nn.Sequential(
                nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

        def forward(self, x):
            return torch.relu(self.body(x) + self.short(x))

    if model_name == "mlp":
        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        x = torch.randn(batch, 784)
    elif model_name == "cnn":
        model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                              nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16 * 16, 128), nn.ReLU(),
                              nn.Linear(128, 10))
        x = torch.randn(batch, 3, 32, 32)
    else:
        shapes = [(16 << (g if b > 0 or g == 0 else g - 1), 16 << g, 2 if g > 0 and b == 0 else 1)
                  for g in range(3) for b in range(3)]
        blocks = [Block(*shape) for shape in shapes]
        model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *blocks,
                              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        x = torch.randn(batch, 3, 32, 32)
    if mode != "eager" and x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return model, x, torch.randint(0, 10, (batch,))


def torch_step(model, x, y, mode):
    """A function that makes one training step."""
    import torch

    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    except (TypeError, RuntimeError):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss()
    run = torch.compile(model) if mode == "compile" else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(run(x), y).backward()
        optimizer.step()

    return step


def torch_side(arguments):
    """Prints the median step in seconds of each interval that is asked for on stdin: milliseconds, a line each."""
    import time

    import torch

    torch.set_num_threads(arguments.thread)
    step = torch_step(*torch_model(arguments.model, arguments.mode, arguments.batch), arguments.mode)
    for _ in range(5):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        end, steps = time.perf_counter() + float(line) * 1e-3, []
        while time.perf_counter() < end:
            begin = time.perf_counter()
            step()
            steps.append(time.perf_counter() - begin)
        print(statistics.median(steps), flush=True)


def peer_environment(threads):
    # Large blocks are kept, not given back to the system and touched anew in each step.
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1",
                   "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "268435456"}
    environment.pop("OPENBLAS_CORETYPE", None)
    return environment


class TorchProcess:
    """One mode, alive between intervals so that a compiler runs once."""

    def __init__(self, model, mode, threads, batch):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--torch-side", "--model", model, "--mode", mode, "--thread", str(threads),
             "--batch", str(batch)], env=peer_environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.works = self.process.stdout.readline().strip() == "ready"

    def step_seconds(self, milliseconds):
        self.process.stdin.write(f"{milliseconds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def why(self):
        lines = self.process.stderr.read().strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def our_step_seconds(program, model, threads, batch, milliseconds):
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "train.json")
        subprocess.run([program, "--models", model, "--threads", str(threads), "--batch", str(batch), "--milliseconds",
                        str(milliseconds), "--json", table], check=True, stdout=subprocess.DEVNULL)
        return json.loads(table.read_text())[0]["step_seconds"]


def compare(arguments, model, threads):
    peers = {}
    for mode in arguments.modes.split(","):
        if mode == "channels_last" and model == "mlp":
            continue
        peer = TorchProcess(model, mode, threads, arguments.batch)
        if peer.works:
            peers[mode] = (peer, peer.step_seconds(arguments.milliseconds))
        else:
            print(f"PyTorch {mode} does not run {model}: {peer.why()}", file=sys.stderr)
    if not peers:
        sys.exit("train_pytorch: PyTorch runs in none of the modes")
    best = min(peers, key=lambda mode: peers[mode][1])
    for mode, (peer, _) in peers.items():
        if mode != best:
            peer.end()
    ours, theirs, ratios = [], [], []
    for _ in range(arguments.intervals):
        theirs.append(peers[best][0].step_seconds(arguments.milliseconds))
        ours.append(our_step_seconds(arguments.bench, model, threads, arguments.batch, arguments.milliseconds))
        ratios.append(theirs[-1] / ours[-1])
    peers[best][0].end()
    row = {"model": model, "threads": threads, "batch": arguments.batch, "mode": best,
           "modes": {mode: arguments.batch / seconds for mode, (_, seconds) in peers.items()},
           "ours": arguments.batch / statistics.median(ours), "pytorch": arguments.batch / statistics.median(theirs),
           "ratio": statistics.median(ratios)}
    print(f"{model:<9} {threads:>7} {row['ours']:>12.0f} {row['pytorch']:>12.0f} {row['ratio']:>7.2f}  {best}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, default=Path(__file__).parent.parent / "build/release/benchmarks/train",
                        help="the program `train` (%(default)s)")
    parser.add_argument("--models", default="mlp,cnn,resnet20")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--modes", default=",".join(MODES), help="of PyTorch (%(default)s)")
    parser.add_argument("--intervals", type=int, default=5, help="of each side, in turn")
    parser.add_argument("--milliseconds", type=int, default=2000, help="of an interval")
    parser.add_argument("--json", type=Path, help="file for the table")
    parser.add_argument("--torch-side", action="store_true", help=argparse.SUPPRESS)
    for name in ("--model", "--mode"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--thread", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch_side:
        return torch_side(arguments)
    try:
        import torch
    except ImportError:
        print("train_pytorch: PyTorch is not installed here; nothing is compared", file=sys.stderr)
        return 0
    if not arguments.bench.exists():
        sys.exit(f"train_pytorch: {arguments.bench} is not there; `./dev bench train` builds it, or give --bench")
    print(f"PyTorch {torch.__version__}, batch {arguments.batch}, examples/s")
    print(f"{'model':<9} {'threads':>7} {'evenkeel':>12} {'pytorch':>12} {'ratio':>7}  mode")
    rows = [compare(arguments, model, int(threads)) for model in arguments.models.split(",")
            for threads in arguments.threads.split(",")]
    if arguments.json:
        arguments.json.write_text(json.dumps({"pytorch": torch.__version__, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
