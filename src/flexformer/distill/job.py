"""One distillation from options to an adapter and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from ..convert import convert, save_adapter
from ..convert.swap import check_attention
from ..files import write_json
from ..tasks import Split
from ..training import LOSS, Job, RunFolder
from ..training.trainer import TaskTrainer
from .distiller import Distiller
from .fidelity import fidelity
from .options import GLUE_PREFIX, DistillOptions
from .pretrained import check_lengths, load_config, load_model, load_tokenizer, longest_input, start_token
from .report import Report, metrics
from .sequences import SequenceDataset, pad, padding_token
from .texts import Texts

SPLITS: tuple[Split, ...] = ("train", "validation")
START_SEQUENCES, START_TOKENS = 32, 16384  # what centres start from: so many at most
REPORT = "report.json"


class DistillJob(Job):
    """Kernels that learn from a pretrained model's own attention.

    The run's folder gets `adapter/`, for `flexformer.load_adapter`, and `report.json`: by layer and head how far the
    kernels are from softmax before and after, how much of the model's outputs is left, and how long the sequences were.
    """

    options: DistillOptions
    best = LOSS

    def __init__(self, options: DistillOptions) -> None:
        super().__init__(options)
        check_attention(options.attention)
        self.config, self.tokenizer = load_config(options.base), load_tokenizer(options.base)
        self.pad_token = padding_token(self.tokenizer)
        self.texts = Texts(options.text, options.data, self.tokenizer, start_token(self.config, self.tokenizer))
        self.layers: list[int] = []
        self.start: dict[str, Tensor] = {}
        self.report: dict[str, Any] | None = None

    def prepare(self, console: Console) -> None:
        if self.options.positions is not None:
            self._base()  # which says what is wrong with them before anything is read
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("reading text", total=None)
            for split in SPLITS:
                self.texts.dataset(split, lambda done: progress.update(bar, completed=done))
        most = self.options.positions or longest_input(self.config)
        check_lengths(map(self.dataset, SPLITS), most, self.options.base)
        self._say_lengths(console)

    def _base(self) -> PreTrainedModel:
        return load_model(self.options.base, positions=self.options.positions)

    def _say_lengths(self, console: Console) -> None:
        train, data = self.dataset("train"), self.options.data
        lengths = train.lengths()
        console.print(
            f"{len(train):,} sequences to learn from, half of them of {lengths['median']:,} tokens or more, "
            f"the longest of {lengths['longest']:,}"
        )
        could_join = not data.join and not self.options.text.startswith(GLUE_PREFIX)
        if could_join and 2 * lengths["median"] <= data.max_length:
            console.print(
                f"paragraphs are much shorter than data.max_length {data.max_length}; --data.join true puts them "
                "together"
            )

    def model(self) -> Distiller:
        options = self.options
        model = self._base()
        torch.manual_seed(options.seed)  # whatever loading drew, the kernels start the same
        convert(model, options.attention, options.kernel.layers, **options.kernel.options)
        distiller = Distiller(model, options.loss)
        train = self.dataset("train")
        longest = max(len(row["input_ids"]) for row in train.rows[:START_SEQUENCES])
        count = min(START_SEQUENCES, len(train), max(1, START_TOKENS // longest))
        distiller.initialise_from_data(**self.collate([train[i] for i in range(count)]))
        self.layers = distiller.layers
        self.start = {name: value.clone() for name, value in distiller.state_dict().items()}
        return distiller

    def dataset(self, split: Split) -> SequenceDataset:
        return self.texts.dataset(split)

    def collate(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return pad(examples, self.pad_token) | {"labels": torch.tensor([example["labels"] for example in examples])}

    def metrics(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return metrics(logits, self.layers)

    def conclude(self, trainer: TaskTrainer) -> dict[str, float]:
        distiller = trainer.network
        assert isinstance(distiller, Distiller)
        learned = {name: value.clone() for name, value in distiller.state_dict().items()}
        found: dict[str, Any] = {}
        results: dict[str, float] = {}
        for moment, weights in (("before", self.start), ("after", learned)):
            distiller.load_state_dict(weights)
            sums = trainer.predict(self.dataset("validation")).predictions
            report = Report.of(np.asarray(sums), self.layers)
            outputs = self._outputs(distiller)
            found[moment] = report.as_dict() | {"outputs": outputs}
            mean = report.mean().as_dict()
            results |= {f"{moment}_{name}": value for name, value in (mean | outputs).items()}
        self.report = {
            "base": self.options.base,
            "text": self.options.text,
            "attention": self.options.attention,
            "lengths": {split: self.dataset(split).lengths() for split in SPLITS},
            **found,
        }
        return results

    def _outputs(self, distiller: Distiller) -> dict[str, float]:
        training = self.options.training
        size = training.eval_batch_size or training.batch_size
        loader = DataLoader(self.dataset("validation"), batch_size=size, collate_fn=self.collate)
        return fidelity(distiller.model, loader)

    def save(self, model: nn.Module, folder: RunFolder) -> None:
        assert isinstance(model, Distiller)
        save_adapter(model.model, folder.adapter)
        if self.report is not None:
            write_json(folder.path / REPORT, self.report)
