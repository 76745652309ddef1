"""Verdicts on the paper's claims say no more than runs do."""

from __future__ import annotations

import math
import random
from statistics import mean
from types import SimpleNamespace

import pytest

from flexformer.attention import ATTENTIONS
from flexformer.bench.scaling import slope
from flexformer.experiments import cost_judges, frequency_judges, judges, verdicts
from flexformer.experiments.paired import Difference, Panel, chance
from flexformer.tasks.paper import accuracy

QUIET = {0: 10.0, 1: 20.0, 2: 30.0}  # what seeds do, the same to all


def panel(**means):
    """Three seeds of each, with a noise of about a tenth."""
    noise = [(0.1, -0.1, 0.0), (-0.1, 0.0, 0.1), (0.0, 0.1, -0.1)]
    return Panel(
        {
            name.replace("_", "-"): {seed: value + QUIET[seed] + noise[i % 3][seed] for seed in QUIET}
            for i, (name, value) in enumerate(means.items())
        }
    )


@pytest.mark.parametrize(
    ("freedom", "point"), [(1, 12.706), (2, 4.303), (3, 3.182), (6, 2.447), (9, 2.262), (18, 2.101), (100, 1.984)]
)
def test_five_per_cent_points_are_those_of_the_printed_tables(freedom, point):
    assert chance(point, freedom) == pytest.approx(0.05, abs=5e-5)
    assert chance(0.0, freedom) == 1.0


def test_two_attentions_are_compared_seed_by_seed():
    steady = {0: 1.1, 1: 3.1, 2: 2.1}
    assert Difference.of(steady, {0: 1.0, 1: 3.0, 2: 2.0}).is_clear
    assert not Difference.of(steady, {0: 0.5, 1: 3.5, 2: 1.5}).is_clear
    assert not Difference.of(steady, {1: 3.0, 7: 9.0}).is_clear
    assert Difference.of(steady, {7: 9.0}) is None


def test_noise_is_what_attention_and_seed_do_not_explain():
    assert Panel({"a": QUIET, "b": {s: v + 5 for s, v in QUIET.items()}}).noise == (pytest.approx(0.0, abs=1e-9), 2)
    deviation, freedom = panel(a=1.0, b=2.0, c=3.0).noise
    assert freedom == 4
    assert 0.05 < deviation < 0.2
    assert Panel({"a": {0: 1.0}, "b": {0: 2.0, 1: 3.0}}).noise is None
    assert Panel({}).noise is None


def test_attentions_that_may_not_learn_are_compared_by_their_own_differences():
    steady = panel(a=1.0, b=2.0, c=3.0)
    wild = {0: 5.0, 1: 90.0, 2: 31.0}
    found = Panel({**steady.scores, "wild": wild}, frozenset({"wild"}))
    assert found.noise == steady.noise
    assert found.difference("a", "b") == steady.difference("a", "b")
    assert found.difference("a", "wild") == Difference.of(steady.scores["a"], wild)
    assert not found.difference("a", "wild").is_clear
    assert Panel({**steady.scores, "wild": wild}).noise[0] > 20 * steady.noise[0]
    shifted = found.difference("a", "wild", share=0.5, margin=2.0)
    assert shifted == Difference.of(steady.scores["a"], {seed: 0.5 * value + 2 for seed, value in wild.items()})
    once = Panel({**steady.scores, "wild": {0: 5.0}}, frozenset({"wild"}))
    assert verdicts.beats(once, "c", ("a", "b", "wild")).verdict == "undecided: one seed"
    assert verdicts.beats(once, "b", ("a", "c", "wild")).kind == verdicts.FAILS
    near = Panel(
        {**once.scores, "near": {seed: value - 0.01 for seed, value in once.scores["c"].items()}}, once.unsteady
    )
    found = verdicts.beats(near, "c", ("a", "near", "wild"))
    assert found.verdict == "undecided: not told from near, one seed in common with wild"


def test_one_run_can_be_compared_once_others_tell_the_noise():
    once = Panel({"ours": {0: 15.0}, "theirs": {0: 12.0}})
    assert verdicts.pair(once, "ours", "theirs").verdict == "undecided: one seed"
    more = Panel({**once.scores, **panel(a=1.0, b=2.0).scores})
    assert verdicts.pair(more, "ours", "theirs").verdict == "holds (one seed)"
    assert verdicts.pair(more, "theirs", "ours").verdict == "does not hold (one seed)"
    near = Panel({**more.scores, "theirs": {0: 14.95}})
    assert verdicts.pair(near, "ours", "theirs").verdict == "undecided: one seed cannot tell"
    assert verdicts.pair(Panel({"a": {0: 1.0}, "b": {1: 1.0}}), "a", "b").verdict == "undecided: no seeds connect them"
    apart = Panel({"a": {0: 1.0, 1: 2.0}, "b": {1: 1.0, 2: 5.0}})
    assert verdicts.pair(apart, "a", "b").verdict == "undecided: nothing tells what runs vary by"
    assert verdicts.pair(more, "ours", "nobody").verdict == verdicts.MISSING


def test_equals_are_not_told_apart():
    draw = random.Random(0)
    for _ in range(200):
        seeds = {seed: 100 * draw.random() for seed in range(3)}
        third = {seed: value + draw.random() for seed, value in seeds.items()}
        assert verdicts.pair(Panel({"a": seeds, "b": seeds, "c": seeds}), "a", "b").kind == verdicts.UNDECIDED
        beside = Panel({"a": seeds, "b": seeds, "c": third, "d": {0: draw.random()}})
        assert not beside.difference("a", "b").is_clear
    exact = Panel({"a": QUIET, "b": QUIET, "c": {seed: value + 1 / 3 for seed, value in QUIET.items()}})
    assert not exact.difference("a", "b").is_clear
    assert exact.difference("c", "b").is_clear


def test_seeds_that_none_of_two_has_do_not_matter():
    found = Panel({"a": {0: 10.0, 1: 11.0}, "b": {0: 9.0, 1: 10.2}, "c": {5: 3.0}})
    assert found.difference("a", "b").mean == pytest.approx(0.9)
    assert found.difference("a", "b", share=0.5).mean == pytest.approx(10.5 - 4.8)
    assert found.difference("a", "c") is None


def test_figures_are_those_of_tables_and_say_how_far_seeds_are_apart_where_these_differ():
    found = Panel({"a": {0: 0.69, 1: 0.75}, "b": {0: 0.70}})
    assert verdicts.pair(found, "a", "b").figures == "a 0.72, b 0.70 (estimated -0.01)"
    bad = Panel({"a": {0: -0.69, 1: -0.75}, "b": {0: -0.70}})
    assert verdicts.pair(bad, "a", "b").figures == "a 0.72, b 0.70 (estimated -0.01)"
    assert verdicts.pair(Panel({"a": {0: 0.5}, "b": {0: 0.6}}), "a", "b").figures == "a 0.50, b 0.60"


def test_runs_without_a_partner_count_as_far_as_others_tell_what_their_seeds_do():
    scores = dict(panel(a=1.0, b=2.0, c=3.0).scores)
    lucky = {**scores["a"], 0: scores["a"][0] + 0.9}  # its first seed is its best
    found = Panel({**scores, "a": lucky, "once": {0: 12.0}})
    apart = found.difference("a", "once")
    first_does = mean(own[0] - mean(own.values()) for own in (lucky, scores["b"], scores["c"]))
    assert apart.mean == pytest.approx(mean(lucky.values()) - (12.0 - first_does))
    assert apart.mean < -0.4
    assert lucky[0] == pytest.approx(12.0)  # by its first seed alone it would be level
    assert apart.seeds == 1
    through = Panel({"a": {0: 1.0}, "b": {1: 12.0}, "c": {0: 5.0, 1: 15.0}})
    assert through.difference("a", "b").mean == pytest.approx(-1.0)
    assert Panel({"a": {0: 1.0}, "b": {1: 12.0}}).difference("a", "b") is None


def test_with_the_same_seeds_for_all_a_difference_is_that_of_means():
    found = panel(a=1.0, b=2.0, c=3.0)
    deviation, _ = found.noise
    apart = found.difference("a", "b", share=0.5, margin=2.0)
    means = {name: mean(own.values()) for name, own in found.scores.items()}
    assert apart.mean == pytest.approx(means["a"] - 0.5 * means["b"] - 2.0)
    assert apart.error == pytest.approx(deviation * math.sqrt(1.25 / 3))


def test_ours_is_ahead_only_of_all_and_behind_with_any():
    def verdict(**means):
        return verdicts.beats(panel(**means), "ours", ("a", "b", "c"))

    assert verdict(ours=5.0, a=1.0, b=2.0, c=4.0).verdict == "holds (3 seeds)"
    assert verdict(ours=5.0, a=1.0, b=2.0, c=4.95).verdict == "undecided: not told from c"
    behind = verdict(ours=5.0, a=1.0, b=7.0, c=4.95)
    assert behind.verdict == "does not hold (3 seeds)"
    assert behind.figures == "ours 25.00, b 27.00"
    assert verdicts.beats(panel(ours=5.0, a=1.0), "ours", ("a", "b")).verdict == verdicts.MISSING


def test_a_noisy_rival_does_not_hide_one_that_is_clearly_ahead():
    found = Panel({"ours": QUIET, **panel(a=3.0, b=0.01).scores})
    assert verdicts.beats(found, "ours", ("a", "b")).verdict == "does not hold (3 seeds)"


def test_very_close_is_at_most_five_per_cent_more():
    def verdict(n, s):
        found = panel(softmax=-120.0, flexformer_n=n, flexformer_s=s)
        return judges.very_close(found).verdict

    assert verdict(-122.0, -123.0) == "holds (3 seeds)"
    assert verdict(-122.0, -140.0) == "does not hold (3 seeds): flexformer-s; holds for flexformer-n"


def transferred(pairs, seed=0):
    """Made-up cells of table 4: by source and target, flexformer-n's score and Hedgehog's."""
    return [
        SimpleNamespace(
            labels={"source": start, "task": target, "attention": name}, seed=seed, metrics={"test_score": score}
        )
        for (start, target), scores in pairs.items()
        for name, score in zip(("flexformer-n", "hedgehog"), scores, strict=True)
    ]


def test_almost_all_pairs_of_tasks_are_told_from_half_of_them():
    better = dict.fromkeys(judges.pairs_of_tasks(), (0.7, 0.6))
    assert len(better) == 8

    def verdict(worse=0, level=0, near=0):
        scores = [(0.5, 0.6)] * worse + [(0.0, 0.0)] * level + [(0.591, 0.6)] * near
        return judges.transfer(transferred(better | dict(zip(better, scores, strict=False)))).verdict

    assert verdict() == "holds (one seed)"
    assert verdict(worse=1) == "holds (one seed)"
    assert verdict(level=2) == "holds (one seed)"
    assert verdict(worse=2) == verdict(worse=4) == "undecided: too few pairs differ"
    assert verdict(worse=5) == "does not hold (one seed)"
    assert verdict(level=8) == "undecided: too few pairs differ"
    assert verdict(worse=3, near=2) == verdict(worse=3, level=2) != verdict(worse=5)
    assert judges.transfer(transferred(dict([*better.items()][1:]))).verdict == verdicts.MISSING


def test_only_seeds_that_both_have_count_for_a_pair_of_tasks():
    behind = dict.fromkeys(judges.pairs_of_tasks(), (0.5, 0.6))
    ahead = transferred(dict.fromkeys(behind, (0.8, 0.0)), seed=1)
    one = [r for r in ahead if r.labels["attention"] == "flexformer-n"]
    assert judges.transfer([*transferred(behind), *one]).verdict == "does not hold (one seed)"


def at_home(scores, seed):
    """Made-up cells of table 3 on CoLA."""
    return [
        SimpleNamespace(labels={"task": "cola", "attention": name}, seed=seed, metrics={"test_score": score})
        for name, score in scores.items()
    ]


def test_a_drop_is_from_the_task_s_own_kernels_to_the_mean_of_others():
    sources = [start for start, target in judges.pairs_of_tasks() if target == "cola"]
    own, carried = [], []
    for seed, luck in enumerate((0.0, 0.02, 0.01)):
        own += at_home({"flexformer-n": 0.6 + luck, "hedgehog": 0.6}, seed)
        noise = 0.004 * seed
        scores = zip(sources, ((0.55 + luck, 0.42 + noise), (0.53 + luck, 0.48)), strict=True)
        carried += transferred({(start, "cola"): pair for start, pair in scores}, seed)
    found = judges.smaller_drop(own, carried, "cola")
    assert (found.verdict, found.figures) == ("holds (3 seeds)", "flexformer-n -6.0, hedgehog -14.8")
    assert judges.smaller_drop([], carried, "cola").verdict == verdicts.MISSING
    elsewhere = at_home({"flexformer-n": 0.6, "hedgehog": 0.6}, 7)
    assert judges.smaller_drop(elsewhere, carried, "cola").verdict == "undecided: no seeds connect them"


def test_an_average_is_of_seeds_that_all_tasks_have():
    found = [
        SimpleNamespace(labels={"task": task, "attention": "softmax"}, seed=seed, metrics={"test_accuracy": value})
        for task, seed, value in (("a", 0, 0.5), ("b", 0, 0.7), ("a", 1, 0.9))
    ]
    scores = verdicts.by_attention(found, "test_accuracy", 100, ["a", "b"]).scores["softmax"]
    assert scores == pytest.approx({0: 60.0})


def test_a_statement_with_parts_fails_with_one_of_them_and_has_the_seeds_of_the_least():
    finding, together = verdicts.Finding, verdicts.together
    holds, once = finding(verdicts.HOLDS, "1", 3), finding(verdicts.HOLDS, "b 2", 1)
    fails, unclear = finding(verdicts.FAILS, "3", 2), finding(verdicts.UNDECIDED, "4", 1, "one seed")
    assert together({"a": holds, "b": once}) == finding(verdicts.HOLDS, "a: 1; b 2", 1)
    assert together({"a": holds, "b": unclear}).verdict == "undecided: b, one seed; holds for a"
    assert together({"a": unclear, "b": fails}).verdict == "does not hold (2 seeds): b; undecided for a"
    assert together({"a": fails, "b": holds, "c": fails}).verdict == "does not hold (2 seeds): a and c; holds for b"
    wide = finding(verdicts.UNDECIDED, "5", 3, "3 seeds cannot tell")
    assert together({"a": unclear, "b": wide, "c": unclear}).verdict == (
        "undecided: a and c, one seed; b, 3 seeds cannot tell"
    )
    assert together({"a": fails, "b": finding(verdicts.MISSING)}).verdict == verdicts.MISSING


def test_random_features_are_severely_below_only_if_each_of_them_is():
    def verdict(performer, rfa):
        found = panel(softmax=80.0, performer=performer, rfa=rfa)
        return judges.below(found, ("performer", "rfa"), 10.0, "severely").verdict

    assert verdict(60.0, 69.0) == "holds (3 seeds)"
    assert verdict(60.0, 71.0) == "does not hold (3 seeds): rfa; holds for performer"
    assert verdict(60.0, 70.0) == "undecided: rfa, 3 seeds cannot tell; holds for performer"
    assert judges.below(Panel({}), ("performer",), 10.0, "severely").verdict == verdicts.MISSING


def test_recovery_is_judged_against_softmax_that_was_fine_tuned_as_often():
    def found(hedgehog):
        scores = panel(softmax=50.0, softmax_twice=80.0, hedgehog=hedgehog, flexformer_n=79.0).scores
        cells = []
        for task, offset in zip(judges.TASKS["cpu"], (2, -2, 1, -1, 0), strict=True):
            for name, by_seed in scores.items():
                for seed, value in by_seed.items():
                    labels = {"task": task, "attention": name}
                    cells.append(
                        SimpleNamespace(labels=labels, seed=seed, metrics={"test_score": (value + offset) / 100})
                    )
        return judges.recovered(cells)

    assert found(79.0).verdict == "holds (3 seeds)"
    assert "flexformer-n by task: CoLA -1 %" in found(79.0).figures
    assert found(79.0).figures.endswith("fine-tuned once, as the paper's softmax is, 70.0")
    assert found(70.0).verdict == "does not hold (3 seeds): hedgehog; holds for flexformer-n"
    assert judges.recovered([]).verdict == verdicts.MISSING


def test_attentions_that_give_one_answer_to_all_are_not_taken_for_steady():
    cells = at_home({"softmax": 0.3, "rfa": 0.0}, 0) + at_home({"softmax": 0.3, "rfa": 0.2}, 1)
    assert judges.glue(cells, ["cola"]).unsteady == {"rfa"}


def swept(task, values, metric, seed=0):
    """Made-up cells of the sweep over frequencies: flexformer-n's figures by n / d, in heads of 16."""
    return [
        SimpleNamespace(
            labels={"task": task, "attention": "flexformer-n", "n": int(16 * share), "head_dim": 16},
            seed=seed,
            metrics={metric: value},
            options={},
        )
        for share, value in values.items()
    ]


def test_more_frequencies_are_better_if_the_slope_says_so():
    falling = {0.25: 210.0, 0.5: 207.0, 1: 203.0, 2: 202.0, 4: 198.0}
    found = frequency_judges.more_frequencies(swept("lm", falling, "test_perplexity"))
    assert found.verdict == "holds (one seed)"
    assert found.figures.startswith("210.00 at 0.25 d, 207.00 at 0.5 d")
    assert found.figures.endswith("; -2.90 for every doubling")
    noise = {0.25: 203.0, 0.5: 205.0, 1: 203.0, 2: 204.0, 4: 202.0}
    assert (
        frequency_judges.more_frequencies(swept("lm", noise, "test_perplexity")).verdict
        == "undecided: one seed cannot tell"
    )
    rising = {share: 400 - value for share, value in falling.items()}
    assert (
        frequency_judges.more_frequencies(swept("lm", rising, "test_perplexity")).verdict == "does not hold (one seed)"
    )
    late = {0.25: 210.0, 0.5: 206.0, 1: 203.0, 2: 201.0, 4: 202.0}
    assert frequency_judges.more_frequencies(swept("lm", late, "test_perplexity")).verdict == "undecided: best at 2 d"
    del falling[2]
    assert frequency_judges.more_frequencies(swept("lm", falling, "test_perplexity")).verdict == verdicts.MISSING


def test_accuracy_is_saturated_if_more_frequencies_give_less_than_a_point():
    def verdict(seeds, **changed):
        cells = []
        for seed in range(seeds):
            noise = 0.001 * ((seed * 2) % 3 - 1)
            values = {0.25: 0.30 + noise, 0.5: 0.33, 1: 0.36, 2: 0.365 - noise, 4: 0.35, **changed.get("more", {})}
            cells += swept("image", values, "test_accuracy", seed)
        return frequency_judges.saturated([], cells, ["image"]).verdict

    assert verdict(3) == "holds (3 seeds)"
    assert verdict(1) == "undecided: Image, 2 d and 4 d, one seed"
    assert verdict(3, more={4: 0.38}) == "does not hold (3 seeds): Image, 4 d; holds for 2 d"


def arena(task, scores, seeds=3):
    """Made-up cells of table 1, with a noise of about a tenth of a point."""
    noise = (0.001, -0.001, 0.0)
    return [
        SimpleNamespace(
            labels={"task": task, "attention": name}, seed=seed, options={},
            metrics={"test_accuracy": value + 0.01 * seed + noise[(i + seed) % 3]},
        )
        for i, (name, value) in enumerate(scores.items())
        for seed in range(seeds)
    ]  # fmt: skip


def test_the_sweep_takes_its_noise_from_table_1_and_the_runs_that_both_have():
    beside = arena("image", {"softmax": 0.34, "flexformer-n": 0.36, "linear": 0.37})
    usual = next(r for r in beside if r.labels["attention"] == "flexformer-n" and r.seed == 0)
    values = {0.25: 0.33, 0.5: 0.35, 1: usual.metrics["test_accuracy"], 2: 0.359, 4: 0.34}
    cells = swept("image", values, "test_accuracy")
    assert frequency_judges.saturated(beside, cells, ["image"]).verdict == "holds (one seed)"
    assert frequency_judges.few_suffice(beside, cells, "image").verdict == "does not hold (one seed)"
    found = frequency_judges.peaked(beside, cells, "image")
    assert found.verdict == "holds (one seed)"
    assert found.figures.startswith("37.00 at d (3 seeds); estimated -3.00 at 0.25 d")
    guessing = swept("image", values | {4: 0.11}, "test_accuracy")
    assert (
        frequency_judges.peaked(beside, guessing, "image").verdict
        == "undecided: d against 4 d, one seed; holds for d against 0.25 d"
    )
    rising = swept("image", values | {4: 0.38}, "test_accuracy")
    assert frequency_judges.peaked(beside, rising, "image").kind == verdicts.FAILS
    assert frequency_judges.peaked(beside, cells[:2], "image").verdict == verdicts.MISSING


def test_competitive_is_at_most_a_point_below_any_that_learned():
    def verdict(**changed):
        scores = dict.fromkeys((judges.SOFTMAX, *judges.OTHERS), 0.60) | {"flexformer-n": 0.598} | changed
        return judges.competitive(arena("text", scores), ["text"]).verdict

    assert verdict() == "holds (3 seeds)"
    assert verdict(rfa=0.50) == "holds (3 seeds)"  # no better than chance
    assert verdict(hedgehog=0.65) == "does not hold (3 seeds): Text"
    assert verdict(hedgehog=0.608) == "undecided: Text, not told to be within 1 point of hedgehog"


def test_uneven_is_who_is_behind_on_some_task_or_has_not_learned_it():
    names = ("hedgehog", "polaformer")

    def found(**pathfinder):
        scores = dict.fromkeys((judges.SOFTMAX, *names), 0.60)
        easy = [r for task in ("listops", "text", "image") for r in arena(task, scores)]
        return judges.uneven(easy + arena("pathfinder", scores | pathfinder), names)

    both = found(hedgehog=0.58, polaformer=0.50)  # one behind, one guessing
    assert both.verdict == "holds (3 seeds)"
    assert both.figures.startswith("hedgehog behind on Pathfinder; polaformer behind on Pathfinder")
    assert found(hedgehog=0.58).verdict == "does not hold (3 seeds): polaformer; holds for hedgehog"
    unclear = found(hedgehog=0.58, polaformer=0.59)
    assert unclear.verdict == "undecided: polaformer; holds for hedgehog"
    assert judges.uneven(arena("text", {judges.SOFTMAX: 0.6}), names).verdict == verdicts.MISSING


def arena_of_all_tasks(scores):
    return [r for task in ("listops", "text", "image", "pathfinder") for r in arena(task, scores)]


def test_half_the_frequencies_are_compared_with_the_runs_of_tables_1_and_2():
    models = [
        SimpleNamespace(
            labels={"attention": name}, seed=seed, metrics={"test_perplexity": 220.0 + seed + 0.1 * (i % 2)}
        )
        for i, name in enumerate(judges.OTHERS)
        for seed in range(3)
    ]
    beside = arena("image", dict.fromkeys(judges.OTHERS, 0.36) | {"flexformer-n": 0.37})

    def found(half):
        cells = swept("lm", {0.5: 205.0}, "test_perplexity") + swept("image", {0.5: half, 1: 0.37}, "test_accuracy")
        return frequency_judges.half_suffices(models, beside, cells, ["image"])

    assert found(0.38).verdict == "holds (one seed)"
    assert found(0.35).verdict == "does not hold (one seed): Image; holds for Language model"
    assert "flexformer-n with d / 2 frequencies 35.00" in found(0.35).figures
    assert frequency_judges.half_suffices(models, beside, [], ["image"]).verdict == verdicts.MISSING


def test_the_stationary_kernel_is_second_if_it_is_ahead_of_all_but_the_other():
    scores = {"softmax": 0.60, "linear": 0.58, "flexformer-s": 0.65, "flexformer-n": 0.70, "flexformer-c": 0.75}

    def found(**changed):
        return judges.on_average(arena_of_all_tasks(scores | changed), judges.second)

    assert found().verdict == "holds (3 seeds)"
    assert "not run on all tasks: performer" in found().figures
    assert found(softmax=0.67).verdict == "does not hold (3 seeds)"


def test_what_attentions_add_is_compared_with_each_other_and_between_sizes():
    found = cost_judges.shares_of_parameters()
    assert found.kind == verdicts.HOLDS
    assert "flexformer-s 0.48 % and 0.42 %, hedgehog 0.48 % and 0.42 %" in found.figures


def test_the_best_of_all_is_ahead_of_everything_the_paper_has():
    def cells(**others):
        scores = dict.fromkeys(accuracy("image"), 0.3) | {"flexformer-n": 0.4} | others
        return [
            SimpleNamespace(
                labels={"task": "image", "attention": name},
                seed=seed,
                metrics={"test_accuracy": value + seed / 1000},
                options={},
            )
            for name, value in scores.items()
            for seed in range(2)
        ]

    assert judges.best_on(cells(**{"flexformer-c": 0.9}), ["image"]).verdict == "holds (2 seeds)"
    assert judges.best_on(cells(longformer=0.5), ["image"]).figures == "Image: flexformer-n 40.05, longformer 50.05"
    assert judges.best_on(cells()[2:], ["image"]).verdict == verdicts.MISSING


def step(row, seconds, peak):
    """A made-up measurement whose quartiles are a twentieth off."""
    times = {"median": seconds, "lower": 0.95 * seconds, "upper": 1.05 * seconds}
    return {"row": row, "seconds": times, "memory": {"peak_bytes": peak}}


def steps(*rows):
    """Made-up figure 2 (b): name, seconds and bytes of every row."""
    measured = [step(*row) for row in rows]
    return [SimpleNamespace(labels={"part": "b"}, details={"measurements": measured})]


def test_every_linear_attention_is_cheaper_only_if_the_worst_is():
    rows = [(name, 1.0, 50) for name in (*judges.OTHERS, "flexformer-s", "flexformer-n")]
    found = cost_judges.all_cheaper(steps(*rows, ("softmax-unfused", 4.0, 100), ("softmax", 2.0, 49)), {})
    assert found.verdict == "holds against softmax-unfused only"
    assert found.figures.startswith("at least 4.0 times as fast")
    assert cost_judges.all_cheaper([], {}).verdict == verdicts.MISSING


def test_the_papers_savings_are_judged_against_every_softmax():
    rows = [("softmax-unfused-dropout", 10.0, 1000), ("softmax-unfused", 5.0, 500), ("softmax", 2.0, 100)]
    found = cost_judges.retrieval_step(steps(*rows, ("flexformer-n", 1.0, 110)), {})
    assert found.verdict == "holds against softmax-unfused-dropout only"
    assert "2.0 times as fast with 110 % of the memory of softmax; taken as" in found.figures
    assert cost_judges.retrieval_step(steps(*rows), {}).verdict == verdicts.MISSING
    again = {"measurements": [step(*row) for row in (*rows, ("flexformer-n", 4.0, 110))]}
    found = cost_judges.retrieval_step(steps(*rows, ("flexformer-n", 1.0, 110)), again)
    assert found.verdict == "does not hold"
    assert found.figures.startswith("2.5 to 10.0 times as fast with 11 % of the memory")


def test_averages_are_of_the_papers_own_tasks_and_leave_out_the_noise_of_what_has_not_learned():
    def cells(*fifth, stuck=0.51):
        scores = {"softmax": 0.60, "flexformer-n": 0.62, "hedgehog": stuck}
        return [
            SimpleNamespace(
                labels={"task": task, "attention": name},
                seed=seed,
                metrics={"test_accuracy": value + seed / 1000},
                options={},
            )
            for task in ("listops", "text", "image", "pathfinder", *fifth)
            for name, value in scores.items()
            for seed in range(2)
        ]

    def judge(panel):
        assert panel.unsteady == {"hedgehog"}
        return verdicts.pair(panel, "flexformer-n", "softmax")

    found = judges.on_average(cells("articles"), judge)
    assert found.figures == "flexformer-n 62.05, softmax 60.05; averages without Retrieval"
    assert judges.on_average(cells("retrieval", "articles"), judge).figures == "flexformer-n 62.05, softmax 60.05"


def test_a_little_dearer_is_not_much_dearer_and_says_what_is_cheaper():
    others = [(name, 1.0, 100) for name in judges.OTHERS]

    def verdict(ours, rows=others, again=None):
        record = {"measurements": [step(*row) for row in again]} if again else {}
        return cost_judges.little_dearer(steps(*rows, ("flexformer-n", *ours)), record).verdict

    assert verdict((1.1, 105)) == "holds"
    assert verdict((0.95, 99)) == "holds"  # within noise
    assert verdict((1.1, 95)) == "holds: memory less than any of them"
    faster = [("linear", 0.5, 100), *others[1:]]
    assert verdict((1.1, 105), faster) == "does not hold: time much more than linear"
    once = verdict((1.1, 105), faster, [*others, ("flexformer-n", 1.1, 95)])
    assert once == "undecided: time much more in one of two measurements than linear"
    twice = verdict((1.1, 95), faster, [*faster, ("flexformer-n", 1.1, 95)])
    assert twice == "does not hold: time much more than linear; memory less than any of them"
    assert cost_judges.little_dearer(steps(*others), {}).verdict == verdicts.MISSING


def test_the_cheapest_is_clearly_below_all_others():
    names = [name for name in ATTENTIONS if not name.startswith("flexformer")]

    def verdict(seconds, peak, **others):
        rows = {name: (name, 1.0, 100) for name in names} | {name: (name, *own) for name, own in others.items()}
        return cost_judges.cheapest(steps(*rows.values(), ("flexformer-n", seconds, peak)), {}).verdict

    assert verdict(0.5, 50) == "holds"
    assert verdict(0.5, 50, linear=(0.3, 60)) == "does not hold: slower than linear"
    assert verdict(0.5, 50, linear=(0.5, 40)) == "does not hold: more memory than linear"
    assert verdict(0.5, 50, linear=(0.5, 60)) == "undecided: level with linear"
    assert cost_judges.cheapest([], {}).verdict == verdicts.MISSING
    cheap, dear = ([step(*row) for row in ((n, 1.0, 100) for n in names)] for _ in range(2))
    dear[names.index("linear")] = step("linear", 0.3, 60)
    found = [SimpleNamespace(labels={"part": "b"}, details={"measurements": [*dear, step("flexformer-n", 0.5, 50)]})]
    again = {"measurements": [*cheap, step("flexformer-n", 0.5, 50)]}
    assert cost_judges.cheapest(found, again).verdict == "undecided: level with linear"


def test_more_frequencies_cost_more_if_time_and_memory_both_grow():
    def judged(*rows):
        labels = {"task": "image", "attention": "flexformer-n", "counts": [int(row[0]) for row in rows]}
        details = {"measurements": [step(*row) for row in rows]}
        return cost_judges.dearer_with_more([SimpleNamespace(labels=labels, details=details)], ["image"])

    found = judged(("8", 1.0, 100), ("16", 1.5, 110), ("32", 2.2, 122), ("64", 3.2, 133))
    assert found.verdict == "holds"
    assert found.figures == "Image: 3.2 times the seconds and 1.33 times the memory with 8 times as many"
    flat = judged(("8", 1.0, 100), ("16", 1.5, 97), ("32", 2.2, 102), ("64", 3.2, 99))
    assert flat.verdict == "undecided: memory of Image; holds for time of Image"
    falling = judged(("8", 1.0, 133), ("16", 1.5, 122), ("32", 2.2, 110), ("64", 3.2, 100))
    assert falling.verdict == "does not hold: memory of Image; holds for time of Image"
    assert cost_judges.dearer_with_more([], ["image"]).verdict == verdicts.MISSING


def test_softmax_is_quadratic_where_a_doubling_takes_four_times():
    def cells(fused):
        found = []
        for length, seconds, peak in ((1024, 3.0, 90), (2048, 4.0, 100), (4096, 16.0, 390), (8192, 64.0, 1500)):
            rows = [step("softmax-unfused", seconds, peak), step("softmax", seconds, fused * length)]
            rows += [step(name, length / 1024, length) for name in ("linear", "flexformer-n")]
            measured = [{**row, "length": length} for row in rows]
            found.append(SimpleNamespace(labels={"part": "a"}, details={"measurements": measured}))
        return found

    assert cost_judges.softmax_grows(cells(1)).verdict == "holds for softmax-unfused only"
    assert "flexformer-n: N^1.0 in time, N^1.0 in memory" in cost_judges.softmax_grows(cells(1)).figures
    assert cost_judges.softmax_grows(cells(1)[:3]).verdict == verdicts.MISSING


def test_growth_is_linear_unless_its_power_is_clearly_larger():
    def verdict(*times, direction="forward"):
        measured = [
            {"row": "flexformer-n", "pass": direction, "length": 2**i, "seconds": {"median": 2**i * time},
             "memory": {"peak_bytes": 2**i}}
            for i, time in enumerate(times)
        ]  # fmt: skip
        power = slope([(m["length"], m["seconds"]["median"]) for m in measured])
        slopes = [{"row": row, "pass": direction, "time": power, "memory": 1.0} for row in ("linear", "flexformer-n")]
        return cost_judges.growth({"slopes": slopes, "measurements": measured, "options": {"fit_from": 1}}).verdict

    assert verdict(1.0, 1.02, 1.0, 1.03, 1.0) == "holds"
    assert verdict(1.0, 1.05, 1.17, 1.14, 1.21) == "undecided: not clearly above"
    assert verdict(1.0, 1.5, 2.2, 3.4, 5.0) == "does not hold"
    assert verdict(1.0, 1.5, 2.2, 3.4, 5.0, direction="forward+backward") == verdicts.MISSING
    assert cost_judges.growth({}).verdict == verdicts.MISSING


def test_what_a_parameter_gains_is_counted_from_linear_on():
    def cells(**perplexities):
        sizes = {"linear": 1000, "hedgehog": 2000, "polaformer": 5000, "flexformer-s": 2000, "flexformer-n": 3000}
        return [
            SimpleNamespace(
                labels={"attention": name}, seed=seed, parameters=sizes[name],
                metrics={"test_perplexity": perplexities[name.replace("-", "_")] + 10 * seed + 0.01 * (i + seed) ** 2},
            )
            for i, name in enumerate(sizes)
            for seed in range(3)
        ]  # fmt: skip

    best = cells(linear=200.0, hedgehog=199.0, polaformer=198.0, flexformer_s=190.0, flexformer_n=180.0)
    found = judges.gain_by_parameter(best)
    assert found.verdict == "holds (3 seeds)"
    assert "flexformer-s +9.8" in found.figures
    worse = cells(linear=200.0, hedgehog=180.0, polaformer=198.0, flexformer_s=190.0, flexformer_n=150.0)
    verdict = judges.gain_by_parameter(worse).verdict
    assert verdict == "does not hold (3 seeds): flexformer-s; holds for flexformer-n"
    assert judges.gain_by_parameter(best[3:]).verdict == verdicts.MISSING


def test_recovery_is_close_if_the_output_is():
    def verdict(*errors):
        cells = [
            SimpleNamespace(
                labels={"map": "flexformer-n", "lr": 0.1}, seed=seed,
                metrics={"after_kl": 1.0, "after_output_error": error, "after_negative_weights": 0.1},
            )
            for seed, error in enumerate(errors)
        ]  # fmt: skip
        return judges.closely(cells).verdict

    assert verdict(0.05, 0.1) == "holds (2 seeds)"
    assert verdict(0.4, 0.5) == "does not hold (2 seeds)"
    assert verdict(0.05, 0.5) == "undecided"
    assert verdict() == verdicts.MISSING
