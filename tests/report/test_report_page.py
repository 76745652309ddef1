"""The report: one file, with everything that was given in it and nothing that was not."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from report_sources import bench_record, write_results, write_run

from flexformer.report import SourceError, collect, page
from flexformer.report.chart import Panel, Series, colours, figure
from flexformer.report.html import Markup, table, tag
from flexformer.report.measures import measure_of
from flexformer.report.results import markdown
from flexformer.report.scale import Scale, length, number

VOID = {"meta", "img", "br", "line", "rect", "circle", "polyline"}


class Outline(HTMLParser):
    """Fails where elements are not nested; notes what a page would load."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.text = [], [], []

    def handle_starttag(self, name, attributes):
        if name not in VOID:
            self.open.append(name)
        self.links += [value for key, value in attributes if key in ("src", "href", "xlink:href")]

    def handle_startendtag(self, name, attributes):
        self.links += [value for key, value in attributes if key in ("src", "href", "xlink:href")]

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text.append(data)


def outline(html):
    found = Outline()
    found.feed(html)
    assert not found.open
    return found


@pytest.fixture
def everything(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"softmax-{seed}", seed=seed)
        write_run(tmp_path / "runs" / f"flexformer-n-{seed}", "flexformer-n", seed)
    write_results(tmp_path / "results" / "table1")
    (tmp_path / "bench.json").write_text(json.dumps(bench_record()))
    return [tmp_path / "runs", tmp_path / "results", tmp_path / "bench.json"]


def test_a_report_holds_every_kind_of_source(everything):
    html = page(collect(everything))
    text = " ".join(outline(html).text)
    for wanted in (
        "4 runs with softmax and flexformer-n",
        "Task text, cpu scale",
        "60.50 ± 0.71",
        "65.66 ± 0.58",  # the paper's
        "Training loss",
        "Table 1",
        "65.1",
        "How time and memory grow with the length",
        "flexformer train text --attention flexformer-n",
        "torch 2.13.0",
        "A CPU",
    ):
        assert wanted in text, wanted


def test_nothing_is_loaded_and_nothing_runs(everything):
    html = page(collect(everything))
    assert all(link.startswith(("#", "data:")) for link in outline(html).links)
    assert "<script" not in html
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html.replace("&#x27;", "'")


def test_what_sources_say_is_shown_as_text(tmp_path):
    evil = '<script>alert("x")</script>'
    write_run(tmp_path / "run", attention=evil, command=["flexformer", evil], versions={evil: "1"}, commit=evil)
    html = page(collect([tmp_path / "run"]), title=evil)
    assert "<script" not in html
    assert evil in "".join(outline(html).text)


def test_the_best_is_bold_and_seeds_are_averaged(everything):
    html = page(collect(everything[:1]))
    assert html.count("60.50 ± 0.71") == 2
    assert '<td class="number">2</td>' in html


def test_a_run_is_shown_once_however_often_it_is_given(everything):
    runs = everything[0]
    assert len(collect([runs, runs, runs / "softmax-0", runs / "softmax-0" / "run.json"]).runs) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "nowhere", "does not exist"),
        (lambda path: path, "holds nothing to report"),
        (lambda path: _file(path / "a.json", "{"), "is damaged: it is not JSON"),
        (lambda path: _file(path / "b.json", "[1]"), "holds nothing to report"),
        (lambda path: _file(path / "run" / "run.json", "{}"), "is not the record of a run"),
    ],
)
def test_what_cannot_be_reported_says_why(tmp_path, make, message):
    with pytest.raises(SourceError, match=re.escape(message)):
        collect([make(tmp_path)])


def _file(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_markdown_becomes_tables_and_stays_harmless():
    html = markdown(
        "## A <b>\n\n| a | b |\n|---|---:|\n| **x** | <i>1</i> |\n\n![p](p.png)\n\n- one\n- [two](http://a)\n"
    )
    assert "<strong>x</strong>" in html
    assert "&lt;i&gt;1&lt;/i&gt;" in html
    assert "<li>two</li>" in html
    assert "http://a" not in html
    assert "<img" not in html


def test_text_is_escaped_and_markup_is_not():
    assert tag("p", "a < b", Markup("<b>c</b>"), class_='"') == '<p class="&quot;">a &lt; b<b>c</b></p>'
    assert table(["a"], [["<"]]).count("&lt;") == 1


def test_charts_leave_out_what_is_not_a_number():
    series = Series("softmax", [(1, 1.0), (2, float("nan")), (3, 2.0), (4, 0.0), (5, 3.0)])
    html = figure([Panel("t", "x", "y", [series], log_y=True)])
    outline(html)
    assert "nan" not in html
    assert "inf" not in html


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [-5.0, 5.0], [1e-9, 1e9], [3.0, 3.0001]])
@pytest.mark.parametrize("log", [False, True])
def test_scales_hold_their_values_and_have_few_ticks(values, log):
    scale = Scale.of(values, log=log)
    assert 1 <= len(scale.ticks) <= 9
    assert all(0 <= scale.place(v) <= 1 for v in values if v > 0 or not log)
    assert all(0 <= scale.place(tick) <= 1 for tick in scale.ticks)


def test_numbers_are_written_as_people_write_them():
    assert [number(v) for v in (0, 0.25, 1500.0, 1e-7, 2e9)] == ["0", "0.25", "1,500", "1e-7", "2e9"]
    assert [length(v) for v in (256, 1024, 65536, 1000)] == ["256", "1k", "64k", "1,000"]


def test_an_attention_has_the_same_colour_in_every_chart():
    assert colours(["linear", "rfa"])["linear"] == colours(["hedgehog", "softmax", "linear"])["linear"]
    several = colours([f"head {i}" for i in range(6)])
    assert len(set(several.values())) == 6


def test_tasks_of_glue_are_shown_by_their_score_where_they_have_an_accuracy_too():
    run = SimpleNamespace(metrics={"test_accuracy": 0.7, "test_score": 0.1})
    assert measure_of([run]).key == "test_score"


def test_runs_with_other_options_are_not_seeds_of_one_another(tmp_path):
    other = {"attention": "softmax", "seed": 0, "data": {"source": None}, "optimizer": {"lr": 0.1}}
    write_run(tmp_path / "first")
    write_run(tmp_path / "second", seed=1)
    write_run(tmp_path / "third", seed=2, options=other | {"seed": 2})
    write_run(tmp_path / "again" / "third", seed=3, options=other | {"seed": 3, "preset": "cpu"})
    html = page(collect([tmp_path]))
    assert "softmax: first" in html
    assert "60.50 ± 0.71" in html
    assert "softmax: third<" in html
    assert "softmax: third (" in html
    assert "62.00" in html
    assert "63.00" in html
