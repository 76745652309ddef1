"""Train a small byte-level language model on Python's standard library and let it write.

python examples/byte_lm.py --attention flexformer-n --steps 200

The model reads the source files that come with Python, so nothing is downloaded. Generation carries a state
of fixed size from byte to byte, however long the text grows.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional as F

import flexformer

LENGTH = 256
BATCH = 8


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, attention: str, **options: Any) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = flexformer.MultiheadAttention(width, num_heads, attention, is_causal=True, **options)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        mixed, state = self.attention(self.norm1(x), state=state, return_state=True)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), state


class ByteLM(nn.Module):
    """A pre-norm decoder over bytes with learned positions."""

    def __init__(self, attention: str, width: int = 128, num_heads: int = 4, depth: int = 2, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, num_heads, attention, **options) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor, states: list[Any] | None = None, start: int = 0) -> tuple[Tensor, list[Any]]:
        """Tokens (B, T) to logits (B, T, 256), from and to a state per layer."""
        # Beyond the trained length the positions repeat their last one; the state goes on.
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device).clamp(max=LENGTH - 1)
        x = self.embedding(tokens) + self.position(positions)
        after = []
        for i, block in enumerate(self.blocks):
            x, state = block(x, None if states is None else states[i])
            after.append(state)
        return self.head(self.norm(x)), after


def standard_library() -> tuple[Tensor, Tensor]:
    """All top-level modules of the standard library as bytes; the last 5 % are for validation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    split = int(len(data) * 0.95)
    return data[:split], data[split:]


def batch(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - LENGTH - 1, (BATCH,), generator=generator)
    rows = torch.stack([data[s : s + LENGTH + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: ByteLM, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens)[0].flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(model: ByteLM, data: Tensor, batches: int = 32) -> float:
    """Mean loss in nats per byte over the same batches every time."""
    generator = torch.Generator().manual_seed(1234)
    model.eval()
    losses = [loss_of(model, *batch(data, generator)).item() for _ in range(batches)]
    model.train()
    return sum(losses) / len(losses)


def train(
    model: ByteLM,
    data: Tensor,
    steps: int,
    seed: int = 0,
    learning_rate: float = 1e-3,
    on_step: Callable[[int, float, float], None] | None = None,
) -> list[float]:
    """Adam with 50 warm-up steps and clipping at 1; returns every step's loss.

    `on_step` receives the step, its loss and the gradient's norm before clipping.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = flexformer.parameter_groups(model)
    optimizer = torch.optim.Adam(groups, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    losses = []
    for step in range(steps):
        loss = loss_of(model, *batch(data, generator))
        optimizer.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if on_step is not None:
            on_step(step, losses[-1], norm)
    return losses


@torch.no_grad()
def write(model: ByteLM, prompt: str, count: int, temperature: float = 0.7, seed: int = 0) -> str:
    """Continue `prompt` by `count` bytes, one at a time from the carried state."""
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    text = list(prompt.encode())
    logits, states = model(torch.tensor([text]))
    for _ in range(count):
        probabilities = (logits[0, -1] / temperature).softmax(-1)
        text.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        logits, states = model(torch.tensor([text[-1:]]), states, start=len(text) - 1)
    return bytes(text).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="flexformer-n", help="any causal attention (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    options = parser.parse_args()

    console = Console()
    training, validation = standard_library()
    torch.manual_seed(options.seed)
    model = ByteLM(options.attention)
    parameters = sum(p.numel() for p in model.parameters())
    console.print(
        f"Training a byte model of {parameters:,} parameters with [bold]{options.attention}[/] attention "
        f"on {len(training) / 1e6:.1f} MB of Python."
    )
    before = validate(model, validation)
    started = time.perf_counter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=options.steps, loss="")
        train(
            model,
            training,
            options.steps,
            options.seed,
            on_step=lambda step, loss, _: progress.update(task, advance=1, loss=f"{loss:.3f} nats/byte"),
        )
    after = validate(model, validation)
    seconds = time.perf_counter() - started
    console.print(
        f"Validation loss {before:.3f} -> [bold]{after:.3f}[/] nats per byte "
        f"({after / math.log(2):.2f} bits), {seconds:.0f} s. A sample, written with a state of fixed size:\n"
    )
    console.print(write(model, "def main(", 300), markup=False, highlight=False)


if __name__ == "__main__":
    main()
