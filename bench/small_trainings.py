"""Six small trainings on made-up data, to see how they share a GPU (PyTorch).

    python bench/small_trainings.py NAME SECONDS FILE [--together] [--pretend]

Trains for the given number of seconds after the first steps, and writes to FILE, as JSON, pairs of a time and the steps
done by then. With `--together` it makes FILE.ready after the first steps, and goes on when FILE.ready is gone. With
`--pretend` a step is a wait, and neither PyTorch nor a GPU is needed: for tests of what runs these.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("mlp", "convolutions", "attention", "recurrent", "embeddings", "tiny")
WARM_STEPS = 5
NOTE_S = 0.2


def made(name: str, torch: Any) -> tuple[Any, Any, Any]:
    """A network, its input and its target."""
    nn = torch.nn
    if name == "mlp":  # large matrices: the card is full
        layers = [nn.Linear(4096, 4096), nn.ReLU()] * 4
        return nn.Sequential(*layers, nn.Linear(4096, 10)), torch.randn(2048, 4096), torch.randn(2048, 10)
    if name == "convolutions":
        sizes = ((3, 64), (64, 128), (128, 128), (128, 128))
        layers = [part for pair in sizes for part in (nn.Conv2d(*pair, 3, padding=1), nn.ReLU())]
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
        return net, torch.randn(64, 3, 64, 64), torch.randn(64, 10)
    if name == "attention":
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        return nn.TransformerEncoder(layer, 4), torch.randn(32, 128, 512), torch.randn(32, 128, 512)
    if name == "recurrent":  # many short kernels, one after the other

        class Last(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.cells, self.out = nn.LSTM(256, 512, 2, batch_first=True), nn.Linear(512, 10)

            def forward(self, x: Any) -> Any:
                return self.out(self.cells(x)[0][:, -1])

        return Last(), torch.randn(64, 200, 256), torch.randn(64, 10)
    if name == "embeddings":  # memory more than arithmetic
        net = nn.Sequential(nn.EmbeddingBag(1_000_000, 128), nn.Linear(128, 10))
        return net, torch.randint(0, 1_000_000, (8192, 32)), torch.randn(8192, 10)
    if name == "tiny":  # hardly anything: the host is what limits it
        return nn.Linear(64, 64), torch.randn(32, 64), torch.randn(32, 64)
    raise SystemExit(f"no training '{name}'; there are {', '.join(NAMES)}")


def step_of(name: str) -> Callable[[], None]:
    """One step of a training."""
    import torch

    torch.manual_seed(0)
    net, x, y = (thing.to("cuda") for thing in made(name, torch))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def train(
    name: str,
    seconds: float,
    file: Path,
    *,
    together: bool = False,
    pretend: bool = False,
    mps: str | None = None,
) -> None:
    """Train and write; under MPS where the folder of its pipes is given."""
    if mps is not None:
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = mps
    step = (lambda: time.sleep(0.01)) if pretend else step_of(name)
    for _ in range(WARM_STEPS):
        step()
    if together:
        ready = Path(f"{file}.ready")
        ready.touch()
        while ready.exists():
            time.sleep(0.002)
    begin_s = noted_s = time.time()
    steps, notes = 0, [(begin_s, 0)]
    note_s = min(NOTE_S, seconds / 10)
    while noted_s < begin_s + seconds:
        step()
        steps += 1
        if (now_s := time.time()) >= noted_s + note_s:
            noted_s = now_s
            notes.append((now_s, steps))
    file.write_text(json.dumps(notes))


if __name__ == "__main__":
    name, seconds, file = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    train(name, seconds, file, together="--together" in sys.argv, pretend="--pretend" in sys.argv)
