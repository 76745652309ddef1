"""A task small enough to learn in a second: do ones or twos prevail?"""

from __future__ import annotations

import numpy as np

from flexformer.tasks import Task
from flexformer.tasks.base import Examples


class Toy(Task):
    name = "toy"
    title = "Toy"
    num_classes = 2
    paper_length = 24
    generated = True
    vocab_size = 4

    def __init__(self, root=None, *, max_length=None, pad_to="longest", size=90):
        super().__init__(root, max_length=max_length, pad_to=pad_to)
        self.size = size

    def prepare(self, progress=lambda done, total: None, *, workers=None):
        progress(1, 1)

    def files(self):
        return ()

    def examples(self, split):
        random = np.random.default_rng(["train", "validation", "test"].index(split))
        inputs, labels = [], []
        for _ in range(self.size):
            label = int(random.integers(2))
            shares = (0.3, 0.5, 0.2) if label else (0.5, 0.3, 0.2)
            inputs.append(random.choice(3, size=int(random.integers(12, 25)), p=shares))
            labels.append(label)
        return Examples((inputs,), np.array(labels), shift=1)

    def layout(self):
        return ()


class ToyPair(Toy):
    name = "toy-pair"
    kind = "pair"

    def examples(self, split):
        alone = super().examples(split)
        order = np.random.default_rng(7).permutation(self.size)
        labels = (alone.labels == alone.labels[order]).astype(np.int64)
        return Examples((alone.inputs[0], [alone.inputs[0][i] for i in order]), labels, shift=1)
