"""Does the recipe train, and how high should the floor be? Trains small models and writes what came out.

python scripts/study_floor.py            # run the cells that are missing, then write the tables
python scripts/study_floor.py --tables   # write the tables from what is there

Six tasks. `recipe`: the byte model of `examples/byte_lm.py` on Python's standard library, with the start and the
policy for signed weights as the paper has them and as they are here. `bytes`: the same model over floors, at contexts
of 256, 1024 and 4096 bytes. `needle`: among N filler tokens one carries a value, which the model must name at the end,
so that attention has to single out one key of N. `match`: all N tokens carry a key and a value, and the model must name
the value of the one token with the key it is asked for, so that which one matters depends on the query. `embeddings`:
the byte model with small embeddings. `attentions`: the byte model with every causal attention, three seeds. Every cell
is a JSON in results/floor/, written when it is finished; the tables go to docs/numerics.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
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
from flexformer.experiments.paired import Panel  # noqa: E402
from flexformer.files import write_json, write_text  # noqa: E402
from flexformer.provenance import commit, versions  # noqa: E402

RESULTS = ROOT / "results" / "floor"
SPECTRAL = ("flexformer-n", "flexformer-s")
FLOORS = (0.1, 0.03, 0.01, 0.003, 0.001)
LENGTHS = (256, 1024, 4096)
BYTE_STEPS, BYTES_IN_STEP = 400, 2048
FILLERS, VALUES, WIDTH = 64, 16, 64
KEYS, STAGES = 32, ((16, 400), (64, 600), (256, 300), (1024, 150), (4096, 100))  # steps at each length, in this order
FEWER_FLOORS = (0.1, 0.01, 0.001)
VARIANTS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "no floor": {"policy": "raw"},
    "paper's start": {"frequency_scale": 1.0},
    "literal": {"frequency_scale": 1.0, "policy": "raw"},
}
SEEDS = (0, 1, 2)
ATTENTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("softmax", "", {}),
    ("linear", "", {}),
    ("performer", "", {}),
    ("rfa", "", {}),
    ("cosformer", "", {}),
    ("hedgehog", "", {}),
    ("polaformer", "", {}),
    ("flexformer-s", "", {}),
    ("flexformer-n", "", {}),
    ("flexformer-n", "centres", {"centres": True}),
    ("flexformer-c", "pairs", {"num_real": 0}),
    ("flexformer-c", "half real", {"num_real": 32}),
    ("flexformer-c", "all real", {"num_real": "all"}),
    ("flexformer-c", "all real, larger start", {"num_real": "all", "real_scale": 0.5}),
    ("flexformer-c", "all real, centres", {"num_real": "all", "centres": True}),
)
BASES = (("softmax", ""), ("flexformer-c", "all real"))
EMBEDDED = ("softmax", "linear", "hedgehog", *SPECTRAL, "flexformer-c")
PAGE = ROOT / "docs" / "numerics.md"
BEGIN, END = "<!-- floor study: begin -->", "<!-- floor study: end -->"


Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]


class NeedleModel(nn.Module):
    """Two pre-norm layers without positions, which name the needle's value at the last token."""

    def __init__(self, embedding: nn.Module, attention: str, **options: Any) -> None:
        super().__init__()
        self.embedding = embedding
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


class PairEmbedding(nn.Module):
    """Of tokens (B, T, 2) that are a key and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(KEYS, WIDTH), nn.Embedding(VALUES + 1, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.key(tokens[..., 0]) + self.value(tokens[..., 1])


def matches(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    asked = torch.randint(KEYS, (batch,), generator=generator)
    others = torch.randint(1, KEYS, (batch, length + 1), generator=generator)
    keys = (asked[:, None] + others) % KEYS
    values = torch.randint(VALUES, (batch, length + 1), generator=generator)
    where = torch.randint(length, (batch,), generator=generator)
    rows = torch.arange(batch)
    keys[rows, where] = keys[:, -1] = asked
    found = values[rows, where]
    values[:, -1] = VALUES  # asks for the value
    return torch.stack((keys, values), dim=-1), found


def train_needle(model: NeedleModel, length: int, steps: int, seed: int, draw: Draw = needles) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(flexformer.parameter_groups(model), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50, 3 - 3 * step / steps)
    )
    model.train()
    for _ in range(steps):
        tokens, values = draw(needles_in_step(length), length, generator)
        loss = F.cross_entropy(model(tokens), values)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def run_needle(attention: str, length: int, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """Learn at the shortest length, then go on for a while at `length`."""
    torch.manual_seed(seed)
    model = NeedleModel(nn.Embedding(FILLERS + VALUES + 1, WIDTH), attention, **options)
    for stage, (stage_length, steps) in enumerate(needle_stages(length)):
        train_needle(model, stage_length, steps, seed + stage)
    return score(model, length, needles)


def needle_stages(length: int) -> tuple[tuple[int, int], ...]:
    """Lengths and how many steps at each."""
    return ((LENGTHS[0], 600), (length, 100))[: 1 if length == LENGTHS[0] else 2]


def needles_in_step(length: int) -> int:
    return max(2, 4096 // length)


def run_match(attention: str, _: int, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """Learn at short lengths first, where a match is found by chance more often."""
    torch.manual_seed(seed)
    model = NeedleModel(PairEmbedding(), attention, **options)
    metrics = {}
    for stage, (length, steps) in enumerate(STAGES):
        train_needle(model, length, steps, seed + stage, matches)
        metrics |= {f"{name}_{length}": value for name, value in score(model, length, matches).items()}
    return metrics


@torch.no_grad()
def score(model: NeedleModel, length: int, draw: Draw) -> dict[str, float]:
    model.eval()
    held_out = torch.Generator().manual_seed(999)
    tests = [draw(8, length, held_out) for _ in range(16)]
    right = sum(int((model(tokens).argmax(-1) == values).sum()) for tokens, values in tests)
    return {"accuracy": right / (8 * len(tests)), "floored_rows": floored(model, tests[0][0][:2])}


def run_bytes(attention: str, length: int, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """The byte model at another context, with as many bytes in a step as at 256, or one sequence."""
    set_context(length)
    torch.manual_seed(seed)
    training, validation = byte_lm.standard_library()
    model = byte_lm.ByteLM(attention, **options)
    byte_lm.train(model, training, BYTE_STEPS, seed)
    loss = byte_lm.validate(model, validation, batches=65536 // (length * byte_lm.BATCH))
    tokens, _ = byte_lm.batch(validation, torch.Generator().manual_seed(1))
    return {"loss": loss, "floored_rows": floored(model, tokens)}


@torch.no_grad()
def floored(model: Any, tokens: Tensor) -> float:
    """The largest share of floored rows among the layers."""
    shares = [0.0]

    def look(module: flexformer.MultiheadAttention, arguments: tuple[Tensor, ...], _: Any) -> None:
        if module.attention != "softmax":
            shares.append(module.statistics(arguments[0]).floored_rows)

    hooks = [block.attention.register_forward_hook(look) for block in model.blocks]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return max(shares)


def set_context(length: int) -> None:
    byte_lm.LENGTH, byte_lm.BATCH = length, max(1, BYTES_IN_STEP // length)


def run_recipe(attention: str, length: int, seed: int, options: dict[str, Any]) -> dict[str, float]:
    set_context(length)
    torch.manual_seed(seed)
    training, validation = byte_lm.standard_library()
    model = byte_lm.ByteLM(attention, **options)
    return train_and_validate(model, training, validation, seed)


def run_embeddings(attention: str, length: int, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """Embeddings of standard deviation 0.02, with the module's projections or smaller ones for values and outputs."""
    set_context(length)
    torch.manual_seed(seed)
    training, validation = byte_lm.standard_library()
    model = byte_lm.ByteLM(attention)
    nn.init.normal_(model.embedding.weight, std=0.02)
    nn.init.normal_(model.position.weight, std=0.02)
    if options["small_projections"]:
        for block in model.blocks:
            block.attention.v_proj.reset_parameters()  # torch's own start has a third of Xavier's variance
            block.attention.o_proj.reset_parameters()
    return train_and_validate(model, training, validation, seed)


def train_and_validate(model: byte_lm.ByteLM, training: Tensor, validation: Tensor, seed: int) -> dict[str, float]:
    norms: list[float] = []
    byte_lm.train(model, training, BYTE_STEPS, seed, on_step=lambda step, loss, norm: norms.append(norm))
    return {"loss": byte_lm.validate(model, validation), "largest_gradient": max(norms)}


RUNNERS = {
    "recipe": run_recipe,
    "embeddings": run_embeddings,
    "attentions": run_recipe,
    "needle": run_needle,
    "match": run_match,
    "bytes": run_bytes,
}


def cells() -> Iterator[dict[str, Any]]:
    def cell(task: str, attention: str, length: int, label: str = "", **options: Any) -> dict[str, Any]:
        seed = options.pop("seed", 0)
        return {
            "task": task,
            "attention": attention,
            "length": length,
            "seed": seed,
            "label": label,
            "options": options,
        }

    for attention in ("softmax", "linear", "hedgehog"):
        yield cell("recipe", attention, 256)
    for attention, (label, options) in itertools.product(SPECTRAL, VARIANTS.items()):
        yield cell("recipe", attention, 256, label, **options)
    for attention, small in itertools.product(EMBEDDED, (False, True)):
        label = "v_proj and o_proj smaller" if small else "Xavier"
        yield cell("embeddings", attention, 256, label, small_projections=small)
    for seed, (attention, label, options) in itertools.product(SEEDS, ATTENTIONS):
        yield cell("attentions", attention, 256, label, seed=seed, **options)
    for task, length in itertools.product(("bytes", "needle"), LENGTHS):
        for attention in ("softmax", "flexformer-c"):
            yield cell(task, attention, length)
        for attention, floors in zip(SPECTRAL, (FLOORS, FEWER_FLOORS), strict=True):
            for floor in floors:
                yield cell(task, attention, length, f"{floor:g}", floor=floor)
    for attention in ("softmax", "flexformer-c", "hedgehog", "linear"):
        yield cell("match", attention, STAGES[-1][0])
    for attention, floor in (*(("flexformer-n", floor) for floor in FEWER_FLOORS), ("flexformer-s", 0.01)):
        yield cell("match", attention, STAGES[-1][0], f"{floor:g}", floor=floor)


def path_of(cell: dict[str, Any]) -> Path:
    label = re.sub("[',]", "", cell["label"]).replace(" ", "_")
    parts = [cell["task"], cell["attention"], label, str(cell["length"])]
    return RESULTS / ("-".join(part for part in parts if part) + f"-{cell['seed']}.json")


def record_of(cell: dict[str, Any]) -> dict[str, Any] | None:
    """What was found with the options that the cell has now."""
    path = path_of(cell)
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return record if record and record["options"] == cell else None


def budget(cell: dict[str, Any]) -> tuple[int, int]:
    """Steps and tokens of a cell's training."""
    length = cell["length"]
    if cell["task"] not in ("needle", "match"):
        return BYTE_STEPS, BYTE_STEPS * max(length, BYTES_IN_STEP)
    stages = needle_stages(length) if cell["task"] == "needle" else STAGES
    tokens = sum(steps * needles_in_step(length) * (length + 1) for length, steps in stages)
    return sum(steps for _, steps in stages), tokens


def run(cell: dict[str, Any]) -> None:
    started = time.perf_counter()
    metrics = RUNNERS[cell["task"]](cell["attention"], cell["length"], cell["seed"], cell["options"])
    steps, tokens = budget(cell)
    record = {
        "command": f"python scripts/study_floor.py --task {cell['task']} --attention {cell['attention']}",
        "options": cell,
        "seed": cell["seed"],
        "steps": steps,
        "tokens": tokens,
        "metrics": metrics,
        "seconds": round(time.perf_counter() - started, 1),
        "commit": commit(),
        "versions": versions("torch"),
        "threads": torch.get_num_threads(),
    }
    write_json(path_of(cell), record)


def tables() -> str:
    """Markdown tables of all cells; a cell not run is empty."""
    everything = list(cells())
    found = {path_of(c): record["metrics"] for c in everything if (record := record_of(c))}

    def metric(cell: dict[str, Any], name: str) -> str:
        value = found.get(path_of(cell), {}).get(name)
        if value is None:
            return ""
        return f"{value:.3f}" if name == "loss" else f"{value:.1f}" if "gradient" in name else f"{100 * value:.1f} %"

    text = [
        "| attention | start and policy | validation loss, nats per byte | largest gradient norm |",
        "|---|---|---|---|",
    ]
    for c in everything:
        if c["task"] == "recipe":
            label = c["label"] + (f" ({settings(c)})" if c["label"] else "")
            text.append(f"| {c['attention']} | {label} | {metric(c, 'loss')} | {metric(c, 'largest_gradient')} |")
    for task, name in (("bytes", "loss"), ("needle", "accuracy")):
        title = {"bytes": "Validation loss, nats per byte", "needle": "Needle found"}[task]
        text += ["", f"{title}; in brackets the share of floored rows in the worst layer after training:", ""]
        text += ["| attention | floor | " + " | ".join(f"N = {n}" for n in LENGTHS) + " |", "|---|---|---|---|---|"]
        rows = [(c["attention"], c["label"]) for c in everything if c["task"] == task and c["length"] == LENGTHS[0]]
        for attention, label in rows:
            row = [c for c in everything if (c["task"], c["attention"], c["label"]) == (task, attention, label)]
            shown = [
                metric(c, name) + (f" ({metric(c, 'floored_rows')})" if label and metric(c, name) else "") for c in row
            ]
            text.append(f"| {attention} | {label} | {' | '.join(shown)} |")
    lengths = [length for length, _ in STAGES]
    text += ["", "Value of the matching key found; in brackets as above:", ""]
    text += [
        "| attention | floor | " + " | ".join(f"N = {n}" for n in lengths) + " |",
        "|---|---|" + "---|" * len(lengths),
    ]
    for c in everything:
        if c["task"] == "match":
            pairs = [(metric(c, f"accuracy_{n}"), metric(c, f"floored_rows_{n}")) for n in lengths]
            shown = [value + (f" ({share})" if c["label"] and value else "") for value, share in pairs]
            text.append(f"| {c['attention']} | {c['label']} | {' | '.join(shown)} |")
    text += ["", "Validation loss with embeddings of standard deviation 0.02:", ""]
    text += ["| attention | projections | validation loss, nats per byte |", "|---|---|---|"]
    for c in everything:
        if c["task"] == "embeddings":
            text.append(f"| {c['attention']} | {c['label']} | {metric(c, 'loss')} |")
    return "\n".join([*text, *_attention_table(everything, found)])


def _attention_table(everything: list[dict[str, Any]], found: dict[Path, dict[str, float]]) -> list[str]:
    text = [
        "",
        f"Validation loss of every causal attention, {len(SEEDS)} seeds, and the difference to softmax's and to that "
        "of flexformer-c as it is by default, by seed; a star where it is further from zero than that of any of so "
        "many equal attentions would be in 95 of 100 cases:",
        "",
        "| attention | variant | mean | standard deviation | to softmax | to flexformer-c | each seed |",
        "|---|---|---|---|---|---|---|",
    ]
    losses = {
        (attention, label): {
            c["seed"]: found[path_of(c)]["loss"]
            for c in everything
            if (c["task"], c["attention"], c["label"]) == ("attentions", attention, label) and path_of(c) in found
        }
        for attention, label, _ in ATTENTIONS
    }
    panel = Panel({" ".join(name): own for name, own in losses.items()})
    for name, own in losses.items():
        mean = f"{statistics.mean(own.values()):.3f}" if own else ""
        spread = f"{statistics.stdev(own.values()):.3f}" if len(own) > 1 else ""
        apart = [_apart(panel, name, base) if base != name else "" for base in BASES]
        each = ", ".join(f"{x:.3f}" for x in own.values())
        text.append(f"| {' | '.join(name)} | {mean} | {spread} | {' | '.join(apart)} | {each} |")
    return text


def _apart(panel: Panel, *names: tuple[str, str]) -> str:
    found = panel.difference(*map(" ".join, names))
    if found is None:
        return ""
    return f"{found.mean:+.3f}{'*' if found.is_clear_among(len(panel.scores) - 1) else ''}"


def settings(cell: dict[str, Any]) -> str:
    scale = cell["options"].get("frequency_scale", 0.25)
    return f"c = {scale:g}, {'no floor' if 'policy' in cell['options'] else 'floor'}"


def page_with_tables() -> str:
    """docs/numerics.md with its block of measurements written anew."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="only write the tables")
    parser.add_argument("--task", choices=tuple(RUNNERS), help="only the cells of this task")
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
    missing = [] if arguments.tables else [cell for cell in wanted if record_of(cell) is None]
    for number, cell in enumerate(missing, 1):
        console.print(f"{number}/{len(missing)} {path_of(cell).stem}", highlight=False)
        run(cell)
    write_text(PAGE, page_with_tables())
    console.print(f"wrote the tables to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
