"""Maps that learn softmax from a pretrained model: which there are, and what experiments with them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from .cells import Cell, TrainedCell
from .experiment import Experiment
from .presets.pretrained import load_distill
from .pretrained_models import Subject, slug
from .stages import Stage, learned_layers

PRESETS = {"paper": "paper", "cpu": "study", "smoke": "smoke"}
"""scale -> preset of `flexformer distill`"""


@dataclass(frozen=True)
class Map:
    """A kernel and its options, over those it has when a model is converted.

    Args:
        label: In tables.
        attention: The kernel.
        options: Its own.
        loss: Of the distillation. Small values of pairs are not noise as those of cosines alone are.
    """

    label: str
    attention: str
    options: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        return slug(self.label)


MAPS = (
    Map("hedgehog", "hedgehog"),
    Map("hedgehog, two maps", "hedgehog", {"tied": False}),
    Map("flexformer-s", "flexformer-s"),
    Map("flexformer-s, no centres", "flexformer-s", {"centres": False}),
    Map("flexformer-n", "flexformer-n"),
    Map("flexformer-n, no centres", "flexformer-n", {"centres": False}),
    Map("flexformer-n, tau frozen", "flexformer-n", {"learn_tau": False}),
    Map("flexformer-n, no norm weight", "flexformer-n", {"tau": 100.0, "match_tau": False, "learn_tau": False}),
    Map("flexformer-n, the paper's start", "flexformer-n", {"frequency_scale": 1.0}),
    Map("flexformer-c, pairs", "flexformer-c", {"num_real": 0, "floor": 1e-3}, {"line": 1e-3}),
    Map("flexformer-c, half real", "flexformer-c", {"num_real": "half", "floor": 1e-3}, {"line": 1e-3}),
    Map("flexformer-c, all real", "flexformer-c"),
    Map("flexformer-c, all real, beta frozen", "flexformer-c", {"learn_beta": False}),
    Map("flexformer-c, all real, no norm weight", "flexformer-c", {"beta": 0.0, "learn_beta": False}),
    Map("flexformer-c, all real, no centres", "flexformer-c", {"centres": False}),
    Map("flexformer-c, all real, start from data", "flexformer-c", {"data_start": True}),
    Map("flexformer-c, all real, orthogonal", "flexformer-c", {"orthogonal": True}),
)


class MapExperiment(Experiment):
    """Maps distilled from one model on one text.

    Args:
        preset: paper, cpu or smoke.
        root: Folder GLUE lives in, for texts such as glue:cola.
        base: A pretrained encoder or decoder; default the scale's own.
        text: To distil on; default the scale's own.
    """

    row_option: ClassVar[str] = "maps"

    def __init__(self, preset: str, root: str | None = None, base: str | None = None, text: str | None = None) -> None:
        super().__init__(preset, root)
        self.subject = Subject.of(preset, root, base, text)

    @property
    def stem(self) -> str:
        return self.subject.stem(self.name, self.preset, self.root)

    def cell(self, label: str, variant: str, seed: int, **options: Any) -> Cell:
        """One distillation.

        Args:
            label: Of its map.
            variant: What tells its name from that of others of the same map.
            seed: Its seed.
            **options: Over those of the preset.
        """
        each = next(one for one in MAPS if one.label == label)
        chosen = load_distill(
            PRESETS[self.preset],
            self.subject.base,
            self.subject.text,
            attention=each.attention,
            seed=seed,
            kernel={"options": each.options},
            loss=each.loss,
            data={"root": self.root},
            **options,
        )
        run = f"{each.slug}{variant}-seed{seed}"
        labels = {"map": label, "attention": each.attention, "lr": chosen.optimizer.lr}
        return TrainedCell(
            self.name, f"{self.subject.slug}-{self.preset}-{run}", labels, self.preset, Stage(run, "distill", chosen)
        )

    def details(self, cell: Cell, output: Path) -> Mapping[str, Any]:
        assert isinstance(cell, TrainedCell)
        layers = learned_layers(cell.stage, output)
        heads = [[head["entropy"], head["kl"]] for layer in layers for head in layer["heads"]]
        return {"kl_by_layer": [layer["kl"] for layer in layers], "heads": heads}
