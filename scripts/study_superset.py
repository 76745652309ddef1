"""Does a kernel that contains flexformer-n as well as flexformer-c come nearer to softmax? Distils it and says.

python scripts/study_superset.py BASE TEXT --output runs/superset

The features e^{a.x} cos c.x [cos b.x, sin b.x] give flexformer-c for c = 0 and flexformer-n for a = 0, at the price of
one projection more. Both are distilled as `flexformer reproduce kernels` does it, pairs only and half real, and the
script prints the divergences side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from flexformer.cli.main import main as flexformer
from flexformer.kernels import Kernel, register
from flexformer.kernels.base import per_head
from flexformer.kernels.blocks import BlockFeatures
from flexformer.kernels.complex_spectrum import ComplexKernel
from flexformer.kernels.workspace import Workspace

NAME = "modulated"


@register(NAME)
class ModulatedKernel(ComplexKernel):
    r"""sum_i e^{a_i.(x + y)} cos b_i.(x - y) cos c_i.x cos c_i.y, c_i starting as small as b_i."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if not hasattr(self, "modulation"):
            self.modulation = nn.Parameter(torch.empty(self.num_heads, self.num_pairs, self.head_dim))
        self.modulation.normal_(std=self.wave_scale * self.scaling**0.5)
        super().reset_parameters()

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # At most unit length, as before: the modulation only shortens.
        phi, size = super()._features(x)
        real, cosines, sines = phi.split((self.num_real, self.num_pairs, self.num_pairs), dim=-1)
        modulation = (x @ per_head(self.modulation, x).mT).cos()
        return torch.cat((real, cosines * modulation, sines * modulation), dim=-1), size

    def blocks(self, batch: int, workspace: Workspace) -> BlockFeatures:
        return Kernel.blocks(self, batch, workspace)


def distil(attention: str, real: str, lr: float, options: argparse.Namespace) -> dict[str, float]:
    """Distil one kernel, unless that is done, and return the mean over layers of its report."""
    folder: Path = options.output / f"{attention}-{real}-lr{lr:g}-seed{options.seed}"
    given = {"num_real": 0 if real == "none" else real, "wave_scale": 0.1}
    settings = {"preset": "study", "attention": attention, "kernel.options": json.dumps(given), "optimizer.lr": lr}
    settings |= {"seed": options.seed, "output": folder}
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    if status := flexformer(["distill", options.base, options.text, *arguments]):
        sys.exit(status)
    found: dict[str, float] = json.loads((folder / "report.json").read_text(encoding="utf-8"))["after"]["mean"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="folder or hub name of a pretrained model")
    parser.add_argument("text", help="a text file to distil on")
    parser.add_argument("--output", type=Path, default=Path("runs/superset"), help="gets a folder for each run")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-2, 3e-2], help="learning rates")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table = Table("kernel", "real features", "learning rate", "KL", "output error")
    for real in ("none", "half"):
        for attention in ("flexformer-c", NAME):
            for lr in options.rates:
                found = distil(attention, real, lr, options)
                table.add_row(attention, real, f"{lr:g}", f"{found['kl']:.4f}", f"{found['output_error']:.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
