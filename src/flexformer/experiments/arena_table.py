"""The paper's table 1: accuracy on the five tasks of Long Range Arena, every attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, ClassVar

from flexformer import tasks as task_room
from flexformer.attention import ATTENTIONS
from flexformer.attention import options as attention_options
from flexformer.tasks import paper

from . import presets
from .cells import Cell, TrainedCell
from .experiment import Experiment, ordered
from .paper import printed, source
from .results import Result
from .stages import Stage
from .tables import Column, Row, Table, Value

SUBSTITUTE = "articles"
RETRIEVAL = "retrieval"
TITLES = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "articles": "Articles",
    "image": "Image",
    "pathfinder": "Pathfinder",
}
ORDER = tuple(TITLES)
# About how much shorter sequences are at cpu scale, and what is made as much smaller in attentions that see a part of
# them: at its default size it would be most of a sequence, or all.
SHORTER = {"listops": 8, "text": 8, "retrieval": 8, "articles": 8, "image": 4, "pathfinder": 4}
PARTS = {
    "reformer": "chunk_length",
    "longformer": "window",
    "bigbird": "block_size",
    "skyformer": "num_landmarks",
}
CONTOUR = "data.options.contour_length"
# What the distance of Pathfinder's discs alone tells, by dashes of a contour; longer ones end anywhere.
DISTANCE = {4: 0.74}
LENGTH = "data.max_length"
# What the counts of bytes alone tell of Articles, by bytes of a piece: Hellinger's distance against its median.
COUNTS = {512: 0.65}
# What the most frequent answer gets; of ListOps these are 0 and 9.
CHANCE = {"listops": 0.18, "text": 0.5, "retrieval": 0.5, "articles": 0.5, "image": 0.1, "pathfinder": 0.5}


class ArenaTable(Experiment):
    """Long Range Arena.

    Args:
        preset: paper, cpu or smoke.
        root: Folder the data lives in.
        tasks: Some of them; default all five, with Articles for Retrieval where AAN is not there.
    """

    name: ClassVar[str] = "table1"

    def __init__(self, preset: str, root: str | None = None, tasks: Sequence[str] | None = None) -> None:
        super().__init__(preset, root)
        for task in tasks or ():
            if task not in ORDER:
                raise ValueError(f"tasks has {task!r}; table1 knows {', '.join(ORDER)}")
        self.tasks = list(tasks) if tasks else default_tasks(root)

    def rows(self) -> tuple[str, ...]:
        return ordered(ATTENTIONS)

    def cells(self, attentions: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [self._cell(task, name, seed) for seed in seeds for task in self.tasks for name in attentions]

    def planned(self, found: Sequence[Result]) -> list[Cell]:
        seeds = sorted({result.seed for result in found})
        return [self._cell(task, name, seed) for seed in seeds for task in ORDER for name in self.rows()]

    def _cell(self, task: str, attention: str, seed: int) -> Cell:
        data: dict[str, Any] = {"root": self.root}
        model = {"attention_options": self._parts(task, attention)}
        options = presets.load(task, self.preset, attention=attention, seed=seed, data=data, model=model)
        name = f"{task}-{attention}-{self.preset}-seed{seed}"
        labels = {"task": task, "attention": attention}
        return TrainedCell(self.name, name, labels, self.preset, Stage(name, "train", options))

    def _parts(self, task: str, attention: str) -> dict[str, int]:
        if self.preset != "cpu" or task not in SHORTER or attention not in PARTS:
            return {}
        return {PARTS[attention]: attention_options(attention)[PARTS[attention]] // SHORTER[task]}

    def tables(self, found: Sequence[Result]) -> list[Table]:
        present = {result.labels["task"] for result in found}
        both = RETRIEVAL in present and SUBSTITUTE in present
        left_out = set() if both else {RETRIEVAL if SUBSTITUTE in present else SUBSTITUTE}
        shown = [task for task in ORDER if task not in left_out]
        averaged = [task for task in shown if task != SUBSTITUTE]
        average = "average" if RETRIEVAL in averaged else f"average without {TITLES[SUBSTITUTE]}"
        where = f"{self.preset} scale"
        columns = [Column(TITLES[task], where) for task in shown] + [Column(average, where)]
        columns += [Column(TITLES[task], "paper", measured=False) for task in paper.COLUMNS]
        columns.append(Column("average", "paper", measured=False))
        rows = [self._row(name, found, shown, averaged) for name in self.rows()]
        notes = [
            _budget(found),
            *self._parts_note(found),
            *_learning_notes(found),
            *self._substitute_note(shown, found),
            *_contours_note(found),
        ]
        notes.append(source(self.name))
        title = f"Table 1: Long Range Arena, test accuracy in per cent, {self.preset} scale"
        return [Table(self.stem, title, "attention", tuple(columns), tuple(rows), tuple(notes))]

    def _row(self, name: str, found: Sequence[Result], shown: Sequence[str], averaged: Sequence[str]) -> Row:
        by_task = {
            task: {
                result.seed: 100 * result.metrics["test_accuracy"]
                for result in found
                if (result.labels["task"], result.labels["attention"]) == (task, name)
            }
            for task in shown
        }
        values: list[Value | None] = [Value.of(list(by_task[task].values())) for task in shown]
        values.append(average([by_task[task] for task in averaged]))
        values += [Value.printed(paper.accuracy(task).get(name)) for task in paper.COLUMNS]
        values.append(Value.printed(printed(self.name)["average"].get(name)))
        return Row(name, tuple(values))

    def _parts_note(self, found: Sequence[Result]) -> list[str]:
        run = {(r.labels["task"], r.labels["attention"]) for r in found}
        smaller = {name for task, name in run if self._parts(task, name)}
        if not smaller:
            return []
        names = ", ".join(name for name in self.rows() if name in smaller)
        sees = "see" if len(smaller) > 1 else "sees"
        return [
            f"What {names} {sees} of a sequence (chunks, windows, blocks, landmarks) is made as much smaller as "
            "sequences are shorter than the paper's."
        ]

    def _substitute_note(self, shown: Sequence[str], found: Sequence[Result]) -> list[str]:
        if SUBSTITUTE not in shown:
            return []
        lengths = {r.options.get(LENGTH) for r in found if r.labels["task"] == SUBSTITUTE}
        alone = [
            f" How often each byte occurs is alone right in {100 * share:.0f} of 100 cases with pieces of {length}."
            for length, share in COUNTS.items()
            if length in lengths
        ]
        return [
            "Articles stands in for Retrieval where the AAN corpus is not at hand: pieces of the same article or of "
            f"two, another task on other data, not to be compared with the paper's Retrieval.{''.join(alone)}"
        ]


def default_tasks(root: str | None) -> list[str]:
    """The five, with the substitute where the data of Retrieval is absent."""
    has_aan = bool(task_room.build(RETRIEVAL, root).files())
    return [task for task in ORDER if task != (SUBSTITUTE if has_aan else RETRIEVAL)]


def average(by_task: Sequence[Mapping[int, float]]) -> Value | None:
    """Mean over tasks, of the seeds that all tasks have; None where there is no such seed."""
    return Value.of(list(averages(by_task).values()))


def averages(by_task: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Mean over tasks for every seed that all tasks have."""
    common = set.intersection(*(set(values) for values in by_task))
    return {seed: mean(values[seed] for values in by_task) for seed in sorted(common)}


def _budget(found: Sequence[Result]) -> str:
    seeds = sorted({result.seed for result in found})
    shown = f"; seeds {', '.join(map(str, seeds))}" if seeds else ""
    last = {r.selected_step == r.steps for r in found} == {True}
    tested = " What is tested is the model after the last step." if last else ""
    return (
        f"Each task has one schedule, equal for all attentions{shown}.{tested} Mean ± standard deviation where there "
        "are several seeds, else it is one; an empty cell was not run, and the average is of complete rows only, over "
        "the seeds that all tasks have. Bold is the highest, told from others or not."
    )


def simple_rule(result: Result) -> float:
    """The share that is right without attending to anything."""
    task, own = result.labels["task"], result.options
    known = {SUBSTITUTE: COUNTS.get(own.get(LENGTH, 0)), "pathfinder": DISTANCE.get(own.get(CONTOUR, 0))}
    return known.get(task) or CHANCE[task]


def has_learned(result: Result) -> bool:
    """Whether it is clearly above the simple rule."""
    return bool(result.metrics["test_accuracy"] >= clearly_above(simple_rule(result), 2000))  # or more test examples


def clearly_above(rule: float, examples: int) -> float:
    """The share that one in a thousand guesses exceeds, if they are right as often as a rule is."""
    return rule + 3.1 * math.sqrt(rule * (1 - rule) / examples)


def stuck(found: Sequence[Result]) -> dict[str, list[str]]:
    """By task, attentions with a run that is no better than the simple rule, where some other run is."""
    behind: dict[str, list[str]] = {}
    for task in TITLES:
        own = [r for r in found if r.labels["task"] == task]
        names = {r.labels["attention"] for r in own if not has_learned(r)}
        if names and any(has_learned(r) for r in own):
            behind[task] = list(ordered(sorted(names)))
    return behind


def _learning_notes(found: Sequence[Result]) -> list[str]:
    """What tells nothing about attentions, or only that they had not learned a task when training ended."""
    notes = []
    tried = {r.labels["task"] for r in found}
    unlearned = tried - {r.labels["task"] for r in found if has_learned(r)}
    for task in (task for task in TITLES if task in unlearned):
        has_rule = any(simple_rule(r) != CHANCE[task] for r in found if r.labels["task"] == task)
        than = "the rule below" if has_rule else "a guess"
        notes.append(f"On {TITLES[task]} no run is better than {than}; it tells little of attentions.")
    if behind := stuck(found):
        names = "; ".join(f"{', '.join(each)} on {TITLES[task]}" for task, each in behind.items())
        notes.append(f"Some run was no better than a guess, or than the rule below: {names}.")
    return notes


def _contours_note(found: Sequence[Result]) -> list[str]:
    """Pathfinder at another difficulty than the benchmark's."""
    lengths = {r.options[CONTOUR] for r in found if CONTOUR in r.options}
    notes = []
    for length in sorted(lengths):
        known = DISTANCE.get(length)
        alone = f" The distance of the discs alone is right in {100 * known:.0f} of 100 cases there." if known else ""
        notes.append(f"Contours of Pathfinder have {length} dashes; the paper's have 14.{alone}")
    return notes
