"""Verdicts on the paper's claims say no more than runs do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flexformer.experiments import judges, verdicts


def test_verdicts_compare_seed_by_seed():
    scores = verdicts.Scores
    steady = scores({0: 1.1, 1: 3.1, 2: 2.1})
    assert steady.against(scores({0: 1.0, 1: 3.0, 2: 2.0})) == "holds (3 seeds)"
    assert scores({0: 1.0, 1: 3.0, 2: 2.0}).against(steady) == "does not hold (3 seeds)"
    assert steady.against(scores({0: 0.5, 1: 3.5, 2: 1.5})) == "undecided: 3 seeds do not tell them apart"
    assert steady.against(scores({1: 3.0, 7: 9.0})) == "holds (one seed)"
    assert steady.against(scores({7: 9.0})) == "undecided: no seed in common"


def test_figures_are_of_the_seeds_that_the_verdict_is_about():
    found = {name: verdicts.Scores(values) for name, values in {"a": {0: 0.69, 1: 0.75}, "b": {0: 0.70}}.items()}
    assert verdicts.pair(found, "a", "b") == verdicts.Finding("does not hold (one seed)", "a 0.69, b 0.70")


def test_the_rival_is_the_one_that_is_nearest_seed_by_seed():
    others = {name: verdicts.Scores({0: -230.0}) for name in judges.OTHERS}
    found = others | {
        "flexformer-n": verdicts.Scores({0: -210.0, 1: -200.0}),
        "hedgehog": verdicts.Scores({0: -209.0}),
        "linear": verdicts.Scores({0: -219.0, 1: -190.0}),
    }
    assert verdicts.beats(found, "flexformer-n", judges.OTHERS).figures == "flexformer-n 210.00, hedgehog 209.00"
    del found["rfa"]
    assert verdicts.beats(found, "flexformer-n", judges.OTHERS) == verdicts.Finding(verdicts.MISSING)


def test_very_close_is_judged_seed_by_seed_as_well():
    def verdict(ours):
        found = {"ours": verdicts.Scores(ours), "softmax": verdicts.Scores({0: -100.0, 1: -102.0})}
        return verdicts.within(found, "ours", "softmax", 1.05, "").verdict

    assert verdict({0: -101.0, 1: -103.0}) == "holds (2 seeds)"
    assert verdict({0: -105.9, 1: -107.1}) == "undecided: 2 seeds do not tell them apart"
    assert verdict({0: -115.0, 1: -117.0}) == "does not hold (2 seeds)"


def transferred(pairs, seed=0):
    """Made-up cells of table 4: by source and target, flexformer-n's score and Hedgehog's."""
    return [
        SimpleNamespace(
            labels={"source": start, "task": target, "attention": name}, seed=seed, metrics={"test_score": score}
        )
        for (start, target), scores in pairs.items()
        for name, score in zip(("flexformer-n", "hedgehog"), scores, strict=True)
    ]


def test_pairs_of_tasks_that_are_level_do_not_count_against_anyone():
    pairs = {(s, t): (0.7, 0.6) for s in judges.SOURCES["cpu"] for t in judges.TASKS["cpu"] if s != t}
    for start in judges.SOURCES["cpu"]:
        pairs[start, "cola"] = (0.0, 0.0)
    assert judges.transfer(transferred(pairs)).verdict == "holds (one seed)"
    assert judges.transfer(transferred(dict.fromkeys(pairs, (0.5, 0.5)))).verdict == "undecided: level everywhere"
    assert judges.transfer(transferred(dict.fromkeys(pairs, (0.5, 0.6)))).verdict == "does not hold (one seed)"
    assert judges.transfer(transferred(dict([*pairs.items()][1:]))).verdict == verdicts.MISSING
    one = [r for r in transferred(dict.fromkeys(pairs, (0.8, 0.0)), seed=1) if r.labels["attention"] == "flexformer-n"]
    both = [*transferred(dict.fromkeys(pairs, (0.5, 0.6))), *one]
    assert judges.transfer(both).verdict == "does not hold (one seed)"


def test_an_average_is_of_seeds_that_all_tasks_have():
    found = [
        SimpleNamespace(labels={"task": task, "attention": "softmax"}, seed=seed, metrics={"test_accuracy": value})
        for task, seed, value in (("a", 0, 0.5), ("b", 0, 0.7), ("a", 1, 0.9))
    ]
    scores = verdicts.by_attention(found, "test_accuracy", 100, ["a", "b"])["softmax"]
    assert scores.values == pytest.approx({0: 60.0})


def test_a_statement_with_parts_fails_with_one_of_them():
    holds, fails, open_ = (
        verdicts.Finding(f"{kind} (one seed)", "1") for kind in ("holds", "does not hold", "undecided")
    )
    assert verdicts.together({"a": holds, "b": holds}) == verdicts.Finding("holds (one seed)", "a: 1; b: 1")
    assert verdicts.together({"a": holds, "b": open_}).verdict == "undecided (one seed)"
    assert verdicts.together({"a": open_, "b": fails}).verdict == "does not hold (one seed)"
    assert verdicts.together({"a": fails, "b": verdicts.Finding(verdicts.MISSING)}).verdict == verdicts.MISSING


def test_severe_degradation_is_ten_points_for_each_of_them():
    def verdict(performer, rfa):
        found = {"softmax": 80.0, "performer": performer, "rfa": rfa}
        scores = {name: verdicts.Scores({0: value}) for name, value in found.items()}
        return judges.degraded(scores, ("performer", "rfa")).verdict

    assert verdict(60.0, 69.0) == "holds (one seed)"
    assert verdict(60.0, 71.0) == "does not hold (one seed)"
    assert judges.degraded({}, ("performer",)).verdict == verdicts.MISSING


def swept(task, values, metric):
    """Made-up cells of the sweep over frequencies: flexformer-n's figures by n / d, in heads of 16."""
    return [
        SimpleNamespace(
            labels={"task": task, "attention": "flexformer-n", "n": int(16 * share), "head_dim": 16},
            seed=0,
            metrics={metric: value},
        )
        for share, value in values.items()
    ]


def test_more_frequencies_are_better_only_if_every_step_is():
    falling = {0.25: 210.0, 0.5: 205.0, 1: 203.0, 2: 202.0, 4: 201.0}
    assert judges.more_frequencies(swept("lm", falling, "test_perplexity")).verdict == "holds (one seed)"
    risen = judges.more_frequencies(swept("lm", falling | {4: 202.5}, "test_perplexity"))
    assert risen.verdict == "does not hold (one seed)"
    assert risen.figures.startswith("210.00 at 0.25 d, 205.00 at 0.5 d")
    del falling[2]
    assert judges.more_frequencies(swept("lm", falling, "test_perplexity")).verdict == verdicts.MISSING


def test_accuracy_is_saturated_if_more_frequencies_give_less_than_a_point():
    flat = {0.25: 0.30, 0.5: 0.33, 1: 0.36, 2: 0.365, 4: 0.35}
    assert judges.saturated(swept("image", flat, "test_accuracy"), ["image"]).verdict == "holds (one seed)"
    rising = judges.saturated(swept("image", flat | {4: 0.38}, "test_accuracy"), ["image"])
    assert rising.verdict == "does not hold (one seed)"


def test_the_best_of_all_is_ahead_of_everything_the_paper_has():
    def cells(**others):
        scores = dict.fromkeys([*judges.OTHERS, "softmax", "flexformer-s"], 0.3) | {"flexformer-n": 0.4} | others
        return [
            SimpleNamespace(labels={"task": "image", "attention": name}, seed=0, metrics={"test_accuracy": value})
            for name, value in scores.items()
        ]

    assert judges.best_on(cells(**{"flexformer-c": 0.9}), ["image"]).verdict == "holds (one seed)"
    assert judges.best_on(cells(longformer=0.5), ["image"]).figures == "Image: flexformer-n 40.00, longformer 50.00"
    assert judges.best_on(cells()[1:], ["image"]).verdict == verdicts.MISSING


def test_every_linear_attention_is_cheaper_only_if_the_worst_is():
    def measured(row, seconds, peak):
        return {"row": row, "seconds": {"median": seconds}, "memory": {"peak_bytes": peak}}

    rows = [measured(name, 1.0, 50) for name in (*judges.OTHERS, "flexformer-s", "flexformer-n")]
    rows += [measured("softmax-unfused", 4.0, 100), measured("softmax", 2.0, 49)]
    found = judges.all_cheaper([SimpleNamespace(labels={"part": "b"}, details={"measurements": rows})])
    assert found.verdict == "holds against softmax-unfused only"
    assert found.figures.startswith("at least 4.0x as fast")
    assert judges.all_cheaper([]).verdict == verdicts.MISSING
