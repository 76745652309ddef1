"""A contact sheet: examples of a picture task side by side, class below class, for the eye."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from flexformer.files import write_bytes
from flexformer.tasks.base import Split, Task

_FRAME = 70  # the grey between pictures
_CLASS_BREAK = 4  # pixels between classes


def contact_sheet(
    task: Task, path: str | os.PathLike[str], *, split: Split = "test", columns: int = 12, scale: int = 3
) -> Path:
    """Write a PNG with the first pictures of each class: 48 in all or one row of each class, whichever is more.

    Args:
        task: One whose examples are square pictures.
        path: The file; an existing one is replaced.
        split: Where the pictures come from.
        columns: Pictures in a row.
        scale: Every pixel becomes scale x scale.
    """
    from PIL import Image

    path = Path(path)
    examples = task.examples(split)
    pixels = examples.inputs[0]
    if not isinstance(pixels, np.ndarray):
        raise ValueError(f"{task.name} has no pictures; a sheet can be made of image and pathfinder")
    side = round(pixels.shape[1] ** 0.5)
    rows = max(1, 48 // columns // task.num_classes)
    blocks = []
    for label in range(task.num_classes):
        chosen = np.flatnonzero(examples.labels == label)[: rows * columns]
        pictures = np.full((rows * columns, side, side), _FRAME, np.uint8)
        pictures[: len(chosen)] = pixels[chosen].reshape(-1, side, side)
        framed = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), constant_values=_FRAME)
        block = framed.reshape(rows, columns, side + 2, side + 2).swapaxes(1, 2).reshape(rows * (side + 2), -1)
        blocks.append(np.pad(block, ((0, _CLASS_BREAK), (0, 0)), constant_values=_FRAME))
    sheet = np.concatenate(blocks)[:-_CLASS_BREAK].repeat(scale, 0).repeat(scale, 1)
    content = io.BytesIO()
    Image.fromarray(sheet).save(content, format="PNG")
    write_bytes(path, content.getvalue())
    return path
