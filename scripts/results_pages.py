"""Write the tables of experiments into the pages of docs/ that show them.

    python scripts/results_pages.py

A page has blocks `<!-- results: FILE begin -->` ... `<!-- results: FILE end -->`, FILE being a table in results/, such
as kernels/kernels-cpu, that `flexformer reproduce` has written. Prose around them may say why something is so, never
how much.
"""

from __future__ import annotations

import re
from pathlib import Path

from flexformer.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
BEGIN = "<!-- results: "
BLOCK = re.compile(r"(<!-- results: (\S+) begin -->\n).*?(<!-- results: \2 end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """A page with its blocks written anew."""
    if len(BLOCK.findall(page)) != page.count(BEGIN) / 2:
        raise ValueError(f"a block {BEGIN} ... begins and does not end as it should")
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2])}\n{match[3]}", page)


def table(name: str) -> str:
    """A file of tables; one that is alone has no heading here, as the page gives it one."""
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    alone = len(re.findall("^### ", text, re.MULTILINE)) == 1
    return re.sub(r"\A### .*\n\n", "", text) if alone else text


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if with_tables(page) != page:
            write_text(path, with_tables(page))
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
