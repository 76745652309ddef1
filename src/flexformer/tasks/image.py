"""Image: what does a small grey picture show? CIFAR-10, read pixel by pixel."""

from __future__ import annotations

import io
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from flexformer.tasks.base import Examples, Padding, Split, Task
from flexformer.tasks.errors import CorruptDataError, MissingDataError
from flexformer.tasks.hub import load_split
from flexformer.tasks.progress import Progress, silent

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE  # label, then the red, green and blue planes
_TRAIN_SHARE = 0.9
_BINARY_FOLDERS = ("cifar-10-batches-bin", "cifar10")
_TRAIN_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_LARGEST_SHEET = 2**26  # pixels
_LARGEST_LABELS = 2**24  # bytes
_UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    OSError,
    EOFError,
    OverflowError,
    MemoryError,
    NotImplementedError,  # a way of compression that does not exist
    RuntimeError,  # a password is asked for
    SyntaxError,  # in the header of an array, as are tokenizer's errors
    tokenize.TokenError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
_TRAIN_SHEETS = tuple(f"train_{i}.png" for i in range(5))


class Image(Task):
    """Grey pictures of 32 x 32 pixels read row by row as 1024 tokens; ten classes.

    Args:
        root: The folder data lives in; default $FLEXFORMER_DATA, else ~/.cache/flexformer/data.
        side: Pictures are averaged down to side x side pixels; 32 leaves them as they are, 16 and 8 are quick
            variants that cannot be compared with the paper.
        lra_pixel_mask: As the original code has it: pixel values are token ids, so black counts as padding.
        source: A Hugging Face `datasets` id such as "uoft-cs/cifar10" instead of files under the root.
        pad_to: Without effect: all pictures are of one size.
    """

    name = "image"
    title = "Image"
    num_classes = 10
    paper_length = 1024
    question = "Which of ten things does this grey picture show?"
    origin = "CIFAR-10, cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        side: int = _SIDE,
        lra_pixel_mask: bool = False,
        source: str | None = None,
        pad_to: Padding = "longest",
    ) -> None:
        if side not in (32, 16, 8):
            raise ValueError(f"side {side} does not divide the picture well; use 32, 16 or 8")
        super().__init__(root, max_length=side * side, pad_to=pad_to)
        self.side = side
        self.lra_pixel_mask = lra_pixel_mask
        self.vocab_size = 256 if lra_pixel_mask else 257
        self.source = source
        self._training: tuple[np.ndarray, np.ndarray] | None = None  # two splits come from the same files

    def prepare(self, progress: Progress = silent, *, workers: int | None = None) -> None:
        if self.source is None:
            self._found()
        else:
            for split in ("train", "test"):
                load_split(self.source, split, (("img", "image"), "label"))

    def files(self) -> tuple[Path, ...]:
        candidates = [self.root / folder for folder in _BINARY_FOLDERS]
        sets = [tuple(folder / name for name in (*_TRAIN_BATCHES, "test_batch.bin")) for folder in candidates]
        sheets = self.root / "cifar10_gray"
        sets.append(tuple(sheets / name for name in (*_TRAIN_SHEETS, "test.png", "labels.npz")))
        return next((paths for paths in sets if all(path.is_file() for path in paths)), ())

    def examples(self, split: Split) -> Examples:
        if split == "test":
            pictures, labels = self._read("test")
        else:
            if self._training is None:
                self._training = self._read("train")
            pictures, labels = self._training
            border = round(_TRAIN_SHARE * len(labels))
            rows = slice(0, border) if split == "train" else slice(border, None)
            pictures, labels = pictures[rows], labels[rows]
        pixels = shrink(pictures, self.side).reshape(len(labels), -1)
        return Examples((pixels,), labels, shift=0 if self.lra_pixel_mask else 1)

    def layout(self) -> tuple[str, ...]:
        return (
            "cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin, the binary version as it unpacks",
            "cifar10_gray/{train_0..4,test}.png, 100 x 100 pictures each, and labels.npz with y_train, y_test",
        )

    def notes(self) -> tuple[str, ...]:
        notes: tuple[str, ...] = ("validation is the last tenth of the training pictures; no augmentation",)
        if self.lra_pixel_mask:
            notes += ("black pixels are masked like padding, as in the original code",)
        else:
            notes += ("token id = pixel + 1, so that black is not padding; lra_pixel_mask brings the original back",)
        if self.side != _SIDE:
            notes += (f"averaged down to {self.side} x {self.side}: results cannot be compared with the paper's",)
        return notes

    def _check_cut(self, length: int) -> None:
        raise ValueError(f"max_length {length} would cut pictures; build image with side=16 or side=8 for shorter ones")

    def _found(self) -> tuple[Path, ...]:
        if files := self.files():
            return files
        raise MissingDataError(
            f"CIFAR-10 is not in {self.root}: get the binary version, cifar-10-binary.tar.gz, from "
            "https://www.cs.toronto.edu/~kriz/cifar.html and unpack it there, so that "
            f"{self.root / 'cifar-10-batches-bin' / 'data_batch_1.bin'} exists, or use source='uoft-cs/cifar10'"
        )

    def _read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Pictures (N, 32, 32) and labels (N,), both uint8."""
        if self.source is not None:
            return _from_hub(self.source, split)
        chosen = [path for path in self._found() if ("test" in path.name) == (split == "test")]
        if chosen[0].suffix == ".bin":
            parts = [_from_binary(path) for path in chosen]
            return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        return _from_sheets([path for path in chosen if path.suffix == ".png"], split)


def grey(colour: np.ndarray) -> np.ndarray:
    """Luminance (..., 3) uint8 -> (...) uint8, rounded as TensorFlow does, whose images the benchmark uses."""
    luminance = (colour.astype(np.float32) / np.float32(255)) @ np.array([0.2989, 0.5870, 0.1140], np.float32)
    return (luminance * np.float32(255.5)).astype(np.uint8)


def shrink(pictures: np.ndarray, side: int) -> np.ndarray:
    """Pictures (N, 32, 32) averaged to (N, side, side)."""
    if side == _SIDE:
        return pictures
    factor = _SIDE // side
    tiles = pictures.reshape(len(pictures), side, factor, side, factor)
    return np.rint(tiles.mean(axis=(2, 4), dtype=np.float32)).astype(np.uint8)


def _from_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    size = path.stat().st_size
    if size == 0 or size % _RECORD:
        raise CorruptDataError(f"{path} has {size} bytes, not a multiple of {_RECORD}, one picture; get the file again")
    records = np.fromfile(path, np.uint8).reshape(-1, _RECORD)
    _check_labels(records[:, 0], path)
    planes = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE)
    return grey(np.moveaxis(planes, 1, -1)), records[:, 0]


def _from_sheets(sheets: list[Path], split: str) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image as Pillow

    pictures = []
    for path in sheets:
        try:
            with Pillow.open(path, formats=("PNG",)) as sheet:
                if sheet.width * sheet.height > _LARGEST_SHEET:  # before anything is unpacked
                    raise ValueError(f"{sheet.width} x {sheet.height} pixels")
                pixels = np.asarray(sheet)
        except (*_UNREADABLE, Pillow.DecompressionBombError) as error:
            raise CorruptDataError(f"{path} is not a readable PNG ({error}); get the file again") from error
        if pixels.ndim != 2 or pixels.dtype != np.uint8 or pixels.shape[0] % _SIDE or pixels.shape[1] % _SIDE:
            raise CorruptDataError(f"{path} is not a grey sheet of {_SIDE} x {_SIDE} pictures but {pixels.shape}")
        rows, columns = pixels.shape[0] // _SIDE, pixels.shape[1] // _SIDE
        pictures.append(pixels.reshape(rows, _SIDE, columns, _SIDE).swapaxes(1, 2).reshape(-1, _SIDE, _SIDE))
    path = sheets[0].with_name("labels.npz")
    labels = _labels(path, f"y_{split}")
    _check_labels(labels, path)
    joined = np.concatenate(pictures)
    if len(joined) != len(labels):
        raise CorruptDataError(f"{path} has {len(labels)} labels in y_{split} for {len(joined)} pictures")
    return joined, labels


def _labels(path: Path, name: str) -> np.ndarray:
    """One array of an archive, as uint8. Its size is known before it is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(f"{name}.npy").file_size
            if size > _LARGEST_LABELS:
                raise ValueError(f"{size} bytes")
            with archive.open(f"{name}.npy") as file:
                content = file.read(_LARGEST_LABELS)
        array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{array.dtype} of shape {array.shape}")
    except _UNREADABLE as error:
        raise CorruptDataError(f"{path} has no readable array {name} ({error}); get the file again") from error
    if array.min(initial=0) < 0 or array.max(initial=0) >= len(CLASSES):
        raise CorruptDataError(f"{path} has labels {array.min()} to {array.max()} in {name}; CIFAR-10 has 0 to 9")
    return array.astype(np.uint8)


def _from_hub(source: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    rows = load_split(source, split, (("img", "image"), "label"))
    image, label = rows.column_names
    colour = np.stack([np.asarray(picture.convert("RGB")) for picture in rows[image]])
    if colour.shape[1:] != (_SIDE, _SIDE, 3):
        raise CorruptDataError(f"source {source!r} has pictures of {colour.shape[1:3]}; {_SIDE} x {_SIDE} is expected")
    labels = np.array(rows[label], np.uint8)
    _check_labels(labels, source)
    return grey(colour), labels


def _check_labels(labels: np.ndarray, where: Path | str) -> None:
    if labels.max(initial=0) >= len(CLASSES):
        raise CorruptDataError(f"{where} has the label {labels.max()}; CIFAR-10 has 0 to 9")
