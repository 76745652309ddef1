"""Verdicts on the paper's claims say no more than runs do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flexformer.experiments import judges, verdicts
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


def test_one_run_can_be_compared_once_others_tell_the_noise():
    once = Panel({"ours": {0: 15.0}, "theirs": {0: 12.0}})
    assert verdicts.pair(once, "ours", "theirs").verdict == "undecided: one seed"
    more = Panel({**once.scores, **panel(a=1.0, b=2.0).scores})
    assert verdicts.pair(more, "ours", "theirs").verdict == "holds (one seed)"
    assert verdicts.pair(more, "theirs", "ours").verdict == "does not hold (one seed)"
    near = Panel({**more.scores, "theirs": {0: 14.95}})
    assert verdicts.pair(near, "ours", "theirs").verdict == "undecided: one seed cannot tell"
    assert verdicts.pair(Panel({"a": {0: 1.0}, "b": {1: 1.0}}), "a", "b").verdict == "undecided: no seed in common"
    assert verdicts.pair(more, "ours", "nobody").verdict == verdicts.MISSING


def test_equals_are_not_told_apart():
    assert verdicts.pair(Panel({"a": QUIET, "b": QUIET, "c": QUIET}), "a", "b").kind == verdicts.UNDECIDED


def test_figures_are_of_the_seeds_that_the_verdict_is_about():
    found = Panel({"a": {0: 0.69, 1: 0.75}, "b": {0: 0.70}})
    assert verdicts.pair(found, "a", "b").figures == "a 0.69, b 0.70"


def test_ours_is_ahead_only_of_all_and_behind_with_any():
    def verdict(**means):
        return verdicts.beats(panel(**means), "ours", ("a", "b", "c"))

    assert verdict(ours=5.0, a=1.0, b=2.0, c=4.0).verdict == "holds (3 seeds)"
    assert verdict(ours=5.0, a=1.0, b=2.0, c=4.95).verdict == "undecided: level with c"
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
    assert verdict(-122.0, -140.0) == "does not hold (3 seeds): flexformer-s"


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

    def verdict(worse=0, level=0):
        scores = [(0.5, 0.6)] * worse + [(0.0, 0.0)] * level
        return judges.transfer(transferred(better | dict(zip(better, scores, strict=False)))).verdict

    assert verdict() == "holds (one seed)"
    assert verdict(worse=1) == "holds (one seed)"
    assert verdict(level=2) == "holds (one seed)"
    assert verdict(worse=2) == verdict(worse=4) == "undecided: too few pairs differ"
    assert verdict(worse=5) == "does not hold (one seed)"
    assert verdict(level=8) == "undecided: too few pairs differ"
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
    assert together({"a": holds, "b": unclear}).verdict == "undecided: b, one seed"
    assert together({"a": unclear, "b": fails}).verdict == "does not hold (2 seeds): b"
    assert together({"a": fails, "b": finding(verdicts.MISSING)}).verdict == verdicts.MISSING


def test_random_features_are_severely_below_only_if_each_of_them_is():
    def verdict(performer, rfa):
        found = panel(softmax=80.0, performer=performer, rfa=rfa)
        return judges.below(found, ("performer", "rfa"), 10.0, "severely").verdict

    assert verdict(60.0, 69.0) == "holds (3 seeds)"
    assert verdict(60.0, 71.0) == "does not hold (3 seeds): rfa"
    assert verdict(60.0, 70.0) == "undecided: rfa, 3 seeds cannot tell"
    assert judges.below(Panel({}), ("performer",), 10.0, "severely").verdict == verdicts.MISSING


def test_recovery_is_judged_against_softmax_that_was_fine_tuned_as_often():
    found = panel(softmax=50.0, softmax_twice=80.0, hedgehog=79.0, flexformer_n=79.0)
    assert judges.recovered(found).verdict == "holds (3 seeds)"
    assert judges.recovered(panel(softmax=50.0, softmax_twice=80.0, hedgehog=70.0, flexformer_n=79.0)).kind == (
        verdicts.FAILS
    )


def swept(task, values, metric, seed=0):
    """Made-up cells of the sweep over frequencies: flexformer-n's figures by n / d, in heads of 16."""
    return [
        SimpleNamespace(
            labels={"task": task, "attention": "flexformer-n", "n": int(16 * share), "head_dim": 16},
            seed=seed,
            metrics={metric: value},
        )
        for share, value in values.items()
    ]


def test_more_frequencies_are_better_if_the_slope_says_so():
    falling = {0.25: 210.0, 0.5: 207.0, 1: 203.0, 2: 202.0, 4: 198.0}
    found = judges.more_frequencies(swept("lm", falling, "test_perplexity"))
    assert found.verdict == "holds (one seed)"
    assert found.figures.startswith("210.00 at 0.25 d, 207.00 at 0.5 d")
    assert found.figures.endswith("; -2.90 for every doubling")
    noise = {0.25: 203.0, 0.5: 205.0, 1: 203.0, 2: 204.0, 4: 202.0}
    assert judges.more_frequencies(swept("lm", noise, "test_perplexity")).verdict == "undecided: one seed cannot tell"
    rising = {share: 400 - value for share, value in falling.items()}
    assert judges.more_frequencies(swept("lm", rising, "test_perplexity")).verdict == "does not hold (one seed)"
    late = {0.25: 210.0, 0.5: 206.0, 1: 203.0, 2: 201.0, 4: 202.0}
    assert judges.more_frequencies(swept("lm", late, "test_perplexity")).verdict == "undecided: best at 2 d"
    del falling[2]
    assert judges.more_frequencies(swept("lm", falling, "test_perplexity")).verdict == verdicts.MISSING


def test_accuracy_is_saturated_if_more_frequencies_give_less_than_a_point():
    def verdict(seeds, **changed):
        cells = []
        for seed in range(seeds):
            noise = 0.001 * ((seed * 2) % 3 - 1)
            values = {0.25: 0.30 + noise, 0.5: 0.33, 1: 0.36, 2: 0.365 - noise, 4: 0.35, **changed.get("more", {})}
            cells += swept("image", values, "test_accuracy", seed)
        return judges.saturated(cells, ["image"]).verdict

    assert verdict(3) == "holds (3 seeds)"
    assert verdict(1) == "undecided: Image, 2 d, one seed"
    assert verdict(3, more={4: 0.38}) == "does not hold (3 seeds): Image, 4 d"


def test_half_the_frequencies_are_compared_with_the_models_of_table_2():
    models = [
        SimpleNamespace(
            labels={"attention": name}, seed=seed, metrics={"test_perplexity": 220.0 + seed + 0.1 * (i % 2)}
        )
        for i, name in enumerate(judges.OTHERS)
        for seed in range(3)
    ]
    cells = swept("lm", {0.5: 205.0}, "test_perplexity")
    assert judges.half_suffices(models, cells).verdict == "holds (one seed)"
    assert judges.half_suffices(models, []).verdict == verdicts.MISSING


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


def steps(*rows):
    """Made-up figure 2 (b): name, seconds and bytes of every row."""
    measured = [{"row": r, "seconds": {"median": s}, "memory": {"peak_bytes": b}} for r, s, b in rows]
    return [SimpleNamespace(labels={"part": "b"}, details={"measurements": measured})]


def test_every_linear_attention_is_cheaper_only_if_the_worst_is():
    rows = [(name, 1.0, 50) for name in (*judges.OTHERS, "flexformer-s", "flexformer-n")]
    found = judges.all_cheaper(steps(*rows, ("softmax-unfused", 4.0, 100), ("softmax", 2.0, 49)))
    assert found.verdict == "holds against softmax-unfused only"
    assert found.figures.startswith("at least 4.0x as fast")
    assert judges.all_cheaper([]).verdict == verdicts.MISSING


def test_the_papers_savings_are_judged_against_every_softmax():
    rows = [("softmax-unfused-dropout", 10.0, 1000), ("softmax-unfused", 5.0, 500), ("softmax", 2.0, 100)]
    found = judges.retrieval_step(steps(*rows, ("flexformer-n", 1.0, 110)))
    assert found.verdict == "holds against softmax-unfused-dropout only"
    assert found.figures.endswith("2.0x, 10% more memory than softmax")
    assert judges.retrieval_step(steps(*rows)).verdict == verdicts.MISSING


def test_averages_name_the_task_that_stands_in_and_leave_out_the_noise_of_what_has_not_learned():
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
    assert found.figures == "flexformer-n 62.05, softmax 60.05; averages with Articles"
    assert judges.on_average(cells("retrieval", "articles"), judge).figures == "flexformer-n 62.05, softmax 60.05"


def test_a_little_dearer_is_neither_cheaper_nor_much_dearer():
    others = [(name, 1.0, 100) for name in judges.OTHERS]
    assert judges.little_dearer(steps(*others, ("flexformer-n", 1.1, 105))).verdict == "holds"
    cheaper = judges.little_dearer(steps(*others, ("flexformer-n", 1.1, 95)))
    assert cheaper.verdict == "does not hold: memory less than any of them"
    others[0] = ("linear", 0.5, 100)
    dearer = judges.little_dearer(steps(*others, ("flexformer-n", 1.1, 105)))
    assert dearer.verdict == "does not hold: time much more than linear"
    assert judges.little_dearer(steps(*others)).verdict == verdicts.MISSING
