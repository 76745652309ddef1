"""Where does a kernel's divergence from softmax come from, and how much of it from weights that are negative?

    python scripts/study_signs.py RUN_FOLDER ...

The folders are those of distillations from one model on one text, one attention among them hedgehog, as
`flexformer reproduce distill-curves --output FOLDER` leaves them. Writes results/signs/signs-cpu.json, and the table
beside it from that; without folders the table alone is written anew.

With P softmax's weights and K a kernel's, both of sum one, the divergence is a sum over keys of P log(P / K) - P + K,
none of them negative. So it can be divided among keys: those whose weight is negative, and of the others those that
softmax gives less than an equal share of its attention, and more. Hedgehog's is divided among the very same keys.
Negative weights have no logarithm; they are raised to a small share of their row's mean, and the table says how much
the divergence depends on that share.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from flexformer.convert.observation import Call, observing
from flexformer.distill.fidelity import softmax_attention
from flexformer.distill.job import DistillJob
from flexformer.distill.options import DistillOptions
from flexformer.experiments.digest import place
from flexformer.files import write_json, write_text
from flexformer.inspection.checkpoint import load
from flexformer.kernels import Kernel
from flexformer.provenance import commit, versions
from flexformer.training import RunFolder

FILE = Path(__file__).resolve().parent.parent / "results" / "signs" / "signs-cpu.json"
SHARES = (1e-4, 1e-6, 1e-8)
SHARE = 1e-6  # the one of all other tables
SMALLEST = 1e-300
OTHER = "hedgehog"
GROUPS = ("negative", "neglected", "preferred")


class Weights:
    """A kernel's weights beside softmax's on one call, (B, H, T, T), and the rows that count."""

    def __init__(self, kernel: Kernel, call: Call) -> None:
        mask = torch.ones(call.key.shape[:1] + call.key.shape[2:3], dtype=torch.bool)
        mask = mask if call.key_mask is None else call.key_mask
        seen = mask[:, None, None, :].expand(-1, call.query.shape[1], call.query.shape[2], -1)
        if call.is_causal:
            seen = seen & torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
        self.seen, self.rows = seen, mask[:, None, :].expand(seen.shape[:3])
        logits = call.query @ call.key.mT * call.scaling
        self.softmax = logits.masked_fill(~seen, -torch.inf).softmax(-1).double()
        phi, g = kernel.key_features(call.key)
        g = torch.zeros(phi.shape[:-1]) if g is None else g
        scale = (g[:, :, None, :] - g.amax(-1)[:, :, None, None]).exp().double() * seen
        self.own = kernel.query_features(call.query).double() @ phi.mT.double() * scale
        self.scale = scale

    def groups(self) -> dict[str, Tensor]:
        """Keys of negative weight, and of the others those that softmax neglects and those that it prefers."""
        preferred = self.softmax * self.seen.sum(-1, keepdim=True) >= 1.0
        positive = self.own > 0
        keys = (~positive, positive & ~preferred, positive & preferred)
        return {name: self.seen & each for name, each in zip(GROUPS, keys, strict=True)}

    def divergence(self, share: float) -> Tensor:
        """(B, H, T, T) by key, negative weights being raised to this share of their row's mean."""
        mean = self.own.abs().sum(-1, keepdim=True) / self.scale.sum(-1, keepdim=True)
        raised = torch.where(self.own > 0, self.own, share * mean * self.scale)
        own = raised / raised.sum(-1, keepdim=True)
        logs = self.softmax.clamp_min(SMALLEST).log() - own.clamp_min(SMALLEST).log()
        return (self.softmax * logs - self.softmax + own) * self.seen

    def mean(self, values: Tensor) -> float:
        return float(values[self.rows].mean())


@torch.no_grad()
def measure(folders: list[Path]) -> dict[str, Any]:
    records = {folder: RunFolder(folder).read() for folder in folders}
    kernels = {(r.attention, r.seed): load(folder).kernels for folder, r in records.items() if r is not None}
    options = DistillOptions.from_dict(next(iter(records.values())).options)  # type: ignore[union-attr]
    job = DistillJob(options)
    calls: list[Call] = []

    def observe(call: Call) -> Tensor:
        calls.append(call)
        return softmax_attention(call)

    model = load(folders[0]).model
    with observing(observe):
        for batch in DataLoader(job.dataset("validation"), batch_size=16, collate_fn=job.collate):
            batch.pop("labels")
            model.base_model(**batch)
    found: dict[str, dict[str, list[float]]] = {}
    for (attention, seed), own in kernels.items():
        figures: dict[str, list[float]] = {}
        rows = []
        for call in calls:
            weights, other = (Weights(kernel[call.layer], call) for kernel in (own, kernels[OTHER, seed]))
            here = {f"kl_{share:g}": weights.divergence(share) for share in SHARES}
            for name, keys in weights.groups().items():
                here |= {
                    f"attention_{name}": weights.softmax * keys,
                    f"kl_{name}": weights.divergence(SHARE) * keys,
                    f"other_{name}": other.divergence(SHARE) * keys,
                }
            for name, by_key in here.items():
                figures.setdefault(name, []).append(weights.mean(by_key.sum(-1)))
            rows.append(float(weights.rows.sum()))
        means = {
            name: sum(x * n for x, n in zip(values, rows, strict=True)) / sum(rows) for name, values in figures.items()
        }
        for name, value in means.items():
            found.setdefault(attention, {}).setdefault(name, []).append(value)
    return {
        "command": ["python", "scripts/study_signs.py", *(folder.name for folder in folders)],
        "base": place(options.base),
        "text": place(options.text),
        "seeds": sorted({seed for _, seed in kernels}),
        "commit": commit(),
        "versions": versions("torch"),
        "figures": found,
    }


def markdown(record: dict[str, Any]) -> str:
    shares = " | ".join(f"KL, {share:g}" for share in SHARES)
    groups = " | ".join(f"{name}: attention, % | KL | {OTHER}'s" for name in GROUPS)
    lines = [f"| map | {shares} | {groups} |", "|---|" + "---:|" * (len(SHARES) + 3 * len(GROUPS))]
    for attention, figures in record["figures"].items():
        means = {name: mean(values) for name, values in figures.items()}
        cells = [f"{means[f'kl_{share:g}']:.4f}" for share in SHARES]
        for name in GROUPS:
            cells.append(f"{100 * means[f'attention_{name}']:.1f}")
            cells += [f"{means[f'{whose}_{name}']:.4f}" for whose in ("kl", "other")]
        lines.append(f"| {attention} | {' | '.join(cells)} |")
    note = (
        f"{record['base']} reading {record['text']}, means of seeds {', '.join(map(str, record['seeds']))}. The first "
        "columns have the share of a row's mean that negative weights are raised to. Then keys are divided by the "
        "map's own weights and by softmax's: negative weights; others with less than an equal share of softmax's "
        "attention; others with more. Each group has softmax's attention on it, its part of the KL at "
        f"{SHARE:g}, and {OTHER}'s on the same keys."
    )
    return "\n".join([*lines, "", note]) + "\n"


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    if folders:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        write_json(FILE, measure(folders))
    write_text(FILE.with_suffix(".md"), markdown(json.loads(FILE.read_text(encoding="utf-8"))))
    print(f"wrote {FILE.with_suffix('.md')}")


if __name__ == "__main__":
    main()
