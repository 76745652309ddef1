"""Does a kernel that contains flexformer-n as well as flexformer-c come nearer to softmax? Distils it and says.

python scripts/study_superset.py BASE TEXT --output runs/superset

The features e^{a.x} cos c.x [cos b.x, sin b.x] give flexformer-c for c = 0 and flexformer-n for a = 0, at the price of
one projection more. They are distilled as `flexformer reproduce kernels` distils flexformer-c, pairs only and half
real; `python scripts/trials.py runs/superset/*` keeps the results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from flexformer.cli.main import main as flexformer
from flexformer.experiments.kernels import RATES
from flexformer.experiments.maps import MAPS
from flexformer.kernels import register
from flexformer.kernels.base import in_dtype_of
from flexformer.kernels.complex_spectrum import ComplexKernel
from flexformer.training import RunFolder

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
        modulation = (x @ in_dtype_of(self.modulation, x).mT).cos()
        return torch.cat((real, cosines * modulation, sines * modulation), dim=-1), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="folder or hub name of a pretrained model")
    parser.add_argument("text", help="a text file to distil on")
    parser.add_argument("--output", type=Path, default=Path("runs/superset"), help="gets a folder for each run")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES["cpu"]), help="learning rates")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with_pairs = [each for each in MAPS if each.loss]
    for each, rate in itertools.product(with_pairs, given.rates):
        settings = {"preset": "study", "attention": NAME, "kernel.options": json.dumps(each.options)}
        settings |= {f"loss.{name}": value for name, value in each.loss.items()} | {"optimizer.lr": rate}
        settings |= {"seed": given.seed, "output": given.output / f"{each.slug}-lr{rate:g}-seed{given.seed}"}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        if status := flexformer(["distill", given.base, given.text, *arguments]):
            sys.exit(status)
        run = RunFolder(Path(settings["output"]))
        if record := run.read():
            # `flexformer distill` by itself does not know the kernel.
            record.command = ["python", "scripts/study_superset.py", *sys.argv[1:]]
            run.write(record)


if __name__ == "__main__":
    main()
