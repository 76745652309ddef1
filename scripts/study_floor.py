"""How high should the floor be? Trains small models over floors and lengths and writes what came out.

python scripts/study_floor.py            # run the cells that are missing, then write the tables
python scripts/study_floor.py --tables   # write the tables from what is there

Two tasks. The byte model of `examples/byte_lm.py` on Python's standard library, at contexts of 256, 1024 and 4096
bytes. And a needle: among N filler tokens one carries a value, which the model must name at the end, so that attention
has to single out one key of N. Every cell is a JSON in results/floor/, written when it is finished; the floor's
default in `flexformer.kernels.spectral` follows from them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import byte_lm  # noqa: E402  (found through the line above)

import flexformer  # noqa: E402

RESULTS = ROOT / "results" / "floor"
FLOORS = (0.1, 0.03, 0.01, 0.003, 0.001)
LENGTHS = (256, 1024, 4096)
FILLERS, VALUES, WIDTH = 64, 16, 64


class NeedleModel(nn.Module):
    """Two pre-norm layers without positions, which name the needle's value at the last token."""

    def __init__(self, attention: str, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(FILLERS + VALUES + 1, WIDTH)
        self.blocks = nn.ModuleList(byte_lm.Block(WIDTH, 2, attention, **options) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x, _ = block(x)
        return self.head(self.norm(x[:, -1]))


def needles(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(FILLERS, (batch, length + 1), generator=generator)
    where = torch.randint(length, (batch,), generator=generator)
    values = torch.randint(VALUES, (batch,), generator=generator)
    tokens[torch.arange(batch), where] = FILLERS + values
    tokens[:, -1] = FILLERS + VALUES  # asks for the value
    return tokens, values


def train_needle(model: NeedleModel, length: int, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(flexformer.parameter_groups(model), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50, 3 - 3 * step / steps)
    )
    model.train()
    for _ in range(steps):
        tokens, values = needles(max(2, 4096 // length), length, generator)
        loss = F.cross_entropy(model(tokens), values)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def run_needle(attention: str, length: int, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """Learn at the shortest length, then go on for a while at `length`."""
    torch.manual_seed(seed)
    model = NeedleModel(attention, **options)
    train_needle(model, LENGTHS[0], 600, seed)
    if length != LENGTHS[0]:
        train_needle(model, length, 100, seed + 1)
    model.eval()
    held_out = torch.Generator().manual_seed(999)
    with torch.no_grad():
        tests = [needles(8, length, held_out) for _ in range(16)]
        right = sum(int((model(tokens).argmax(-1) == values).sum()) for tokens, values in tests)
    return {"accuracy": right / (8 * len(tests)), "floored_rows": floored(model, tests[0][0][:2])}


def run_bytes(attention: str, length: int, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """The byte model at another context, with as many bytes in a step as at 256."""
    byte_lm.LENGTH, byte_lm.BATCH = length, max(1, 2048 // length)
    torch.manual_seed(seed)
    training, validation = byte_lm.standard_library()
    model = byte_lm.ByteLM(attention, **options)
    byte_lm.train(model, training, 400, seed)
    loss = byte_lm.validate(model, validation, batches=65536 // (length * byte_lm.BATCH))
    tokens, _ = byte_lm.batch(validation, torch.Generator().manual_seed(1))
    return {"loss": loss, "floored_rows": floored(model, tokens)}


@torch.no_grad()
def floored(model: Any, tokens: Tensor) -> float:
    """The largest share of floored rows among the layers."""
    shares = [0.0]

    def look(module: flexformer.MultiheadAttention, arguments: tuple[Tensor, ...], _: Any) -> None:
        kernel = getattr(module.mechanism, "kernel", None)
        if kernel is not None:
            q = module._heads(module.q_proj(arguments[0]), module.num_heads)
            k = module._heads(module.k_proj(arguments[0]), module.num_kv_heads)
            shares.append(kernel.statistics(q, k, is_causal=True).floored_rows)

    hooks = [block.attention.register_forward_hook(look) for block in model.blocks]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return max(shares)


def cells() -> Iterator[dict[str, Any]]:
    for task, length, seed in itertools.product(("needle", "bytes"), LENGTHS, (0,)):
        yield {"task": task, "attention": "softmax", "floor": None, "length": length, "seed": seed}
        for attention, floor in itertools.product(("flexformer-n", "flexformer-s"), FLOORS):
            yield {"task": task, "attention": attention, "floor": floor, "length": length, "seed": seed}


def path_of(cell: dict[str, Any]) -> Path:
    floor = "" if cell["floor"] is None else f"-{cell['floor']:g}"
    return RESULTS / f"{cell['task']}-{cell['attention']}{floor}-{cell['length']}-{cell['seed']}.json"


def run(cell: dict[str, Any]) -> None:
    options = {} if cell["floor"] is None else {"floor": cell["floor"]}
    started = time.perf_counter()
    runner = run_needle if cell["task"] == "needle" else run_bytes
    metrics = runner(cell["attention"], cell["length"], cell["seed"], options)
    record = {
        "command": "python scripts/study_floor.py",
        "options": cell,
        "metrics": metrics,
        "seconds": round(time.perf_counter() - started, 1),
        "versions": {"flexformer": flexformer.__version__, "torch": importlib.metadata.version("torch")},
        "threads": torch.get_num_threads(),
    }
    target = path_of(cell)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, target)


def tables() -> str:
    """Markdown tables of all cells; a cell not run is empty."""
    text = []
    for task, metric, title in (
        ("needle", "accuracy", "Accuracy on the needle"),
        ("bytes", "loss", "Validation loss of the byte model, nats per byte"),
    ):
        for shown, name in ((metric, title), ("floored_rows", "Share of floored rows after training, worst layer")):
            text += [f"**{name}**" + ("" if shown == metric else f" ({task})"), ""]
            text += ["| attention | floor | " + " | ".join(f"N = {n}" for n in LENGTHS) + " |", "|---" * 5 + "|"]
            rows = [("softmax", None)] if shown == metric else []
            rows += [(a, f) for a in ("flexformer-n", "flexformer-s") for f in FLOORS]
            for attention, floor in rows:
                found = [_metric(task, attention, floor, n, shown) for n in LENGTHS]
                text.append(f"| {attention} | {'' if floor is None else f'{floor:g}'} | {' | '.join(found)} |")
            text.append("")
    return "\n".join(text)


def _metric(task: str, attention: str, floor: float | None, length: int, metric: str) -> str:
    path = path_of({"task": task, "attention": attention, "floor": floor, "length": length, "seed": 0})
    if not path.exists():
        return ""
    value = json.loads(path.read_text())["metrics"][metric]
    return f"{value:.3f}" if metric == "loss" else f"{100 * value:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="only write the tables")
    parser.add_argument("--task", choices=("needle", "bytes"), help="only the cells of this task")
    parser.add_argument("--attention", help="only the cells of this attention")
    arguments = parser.parse_args()
    console = Console()
    RESULTS.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    wanted = [
        cell
        for cell in cells()
        if arguments.task in (None, cell["task"]) and arguments.attention in (None, cell["attention"])
    ]
    missing = [] if arguments.tables else [cell for cell in wanted if not path_of(cell).exists()]
    for number, cell in enumerate(missing, 1):
        console.print(f"{number}/{len(missing)} {path_of(cell).stem}", highlight=False)
        run(cell)
    target = RESULTS / "tables.md"
    target.write_text(tables())
    console.print(f"wrote {target}")


if __name__ == "__main__":
    main()
