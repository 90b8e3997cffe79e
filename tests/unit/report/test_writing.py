from __future__ import annotations

import csv
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiment.errors import PlanError, UsageError
from experiment.records.entry import Warned
from experiment.report import write_report
from experiment.report.tables import Table, text, write_csv
from tests.doubles.small_plan import small_recipe
from tests.doubles.small_run import SmallRun, draft_run

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)> $x^2$ `code` | *bold* =1+1'
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Collects elements, ids and visible text, and checks that elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture(scope="module")
def output(drafted: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    write_report([drafted.run_dir], folder)
    return folder


@pytest.fixture(scope="module")
def page(output: Path) -> Page:
    return Page((output / "report.html").read_text(encoding="utf-8"))


def test_the_page_needs_nothing_from_elsewhere(output: Path, page: Page) -> None:
    links = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href", "action", "srcset"} and not str(value).startswith("#")
    ]
    text = (output / "report.html").read_text(encoding="utf-8")

    assert links == []
    assert not {"script", "iframe", "object", "link", "img"} & {tag for tag, _ in page.elements}
    assert "@import" not in text
    assert text.count("url(") == text.count("url(#")


def test_ids_are_unique_and_every_reference_has_its_target(output: Path, page: Page) -> None:
    references = {str(a["xlink:href"])[1:] for _, a in page.elements if "xlink:href" in a}

    assert len(page.ids) == len(set(page.ids))
    assert references <= set(page.ids)


def test_drawings_take_all_their_colours_from_the_page(output: Path) -> None:
    text = (output / "report.html").read_text(encoding="utf-8")
    drawings = "".join(part.split("</svg>")[0] for part in text.split("<svg")[1:])

    assert "var(--ink)" in drawings
    assert "var(--series-1)" in drawings
    assert "#0" not in drawings
    assert "#f" not in drawings
    assert "DejaVu" not in drawings


def test_the_verdict_comes_before_everything_else(page: Page) -> None:
    headings = [attributes.get("class") for tag, attributes in page.elements if tag in {"h2", "div"}]

    assert headings[0] == "verdicts"


@pytest.mark.parametrize(
    "title",
    [
        "Final assessment", "Selection", "Training", "Strict success by family", "Reward by family",
        "Groups without contrast", "Monitors", "How rollouts ended", "Tokens and errors", "Qualification",
        "What this result does and does not establish", "Preregistration", "Check it yourself",
    ],
)  # fmt: skip
def test_the_page_has_its_sections(page: Page, title: str) -> None:
    assert title in page.words


def test_the_page_names_the_head_and_how_to_check_it(page: Page, drafted: SmallRun) -> None:
    head = (drafted.run_dir / "head.json").read_text(encoding="utf-8")

    assert "python -m experiment audit" in page.text
    assert any(word.startswith("small-run ") and word.rpartition("b3:")[2] in head for word in page.words)


def test_equal_runs_give_equal_bytes(drafted: SmallRun, output: Path, tmp_path: Path) -> None:
    again = write_report([drafted.run_dir], tmp_path)

    assert again.read_bytes() == (output / "report.html").read_bytes()
    assert (tmp_path / "report.md").read_bytes() == (output / "report.md").read_bytes()


def test_two_runs_share_a_page_without_sharing_ids(drafted: SmallRun, failed: Path, tmp_path: Path) -> None:
    page = Page(write_report([drafted.run_dir, failed, drafted.run_dir], tmp_path).read_text(encoding="utf-8"))

    assert len([tag for tag, _ in page.elements if tag == "article"]) == 3
    assert len(page.ids) == len(set(page.ids))


def test_a_failed_qualification_is_reported_as_what_it_is(failed: Path, tmp_path: Path) -> None:
    page = Page(write_report([failed], tmp_path).read_text(encoding="utf-8"))

    assert "Not trained" in page.words
    assert "step 2, loss" in page.text
    assert "Final assessment" not in page.words
    assert "Better than the baseline" not in page.text


@pytest.mark.parametrize("length", [0, 1, 9, 20])
def test_an_unfinished_run_has_an_honest_page(drafted: SmallRun, tmp_path: Path, length: int) -> None:
    run = drafted.copy()
    run.run_dir = tmp_path / "runs" / "small-run"
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "plan.json").write_bytes((drafted.run_dir / "plan.json").read_bytes())
    run.records = run.records[:length]
    run.write(close=False)

    page = Page(write_report([run.run_dir], tmp_path / "output").read_text(encoding="utf-8"))

    assert "No result yet" in page.words
    assert "not finished" in page.words
    assert "Final assessment" not in page.words


def test_text_of_records_is_never_markup(tmp_path: Path) -> None:
    recipe = small_recipe(steps=2, final=3)
    answers = recipe.preregistration.model_copy(update={"question": HOSTILE, "hypothesis": HOSTILE})
    run = draft_run(tmp_path, recipe=recipe.model_copy(update={"preregistration": answers}))
    run.add("warn", Warned(kind=HOSTILE, message=HOSTILE))
    run.write()

    html = write_report([run.run_dir], tmp_path / "output").read_text(encoding="utf-8")
    markdown = (tmp_path / "output" / "report.md").read_text(encoding="utf-8")

    assert not {"script", "img"} & {tag for tag, _ in Page(html).elements}
    assert HOSTILE in Page(html).text
    assert "<script" not in markdown.replace("\\<script", "")
    assert "*bold*" not in markdown


def test_tables_keep_full_precision(output: Path, drafted: SmallRun) -> None:
    with (output / "tables" / "final-agent.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    made = next(body for type_, body, _ in drafted.records if type_ == "stats.result")
    expected = [found for found in made.model_dump()["comparisons"] if found["suite"] == "agent"]

    assert [float(row["low"]) for row in rows] == [found["interval"]["low"] for found in expected]
    assert [float(row["difference, points"]) for row in rows] == [found["difference"] for found in expected]


def test_no_table_starts_a_formula(tmp_path: Path) -> None:
    path = write_csv(Table("t", "", ("a",), ((text("=1+1"),), (text("@x"),), (text("fine"),))), tmp_path)

    assert path.read_text(encoding="utf-8") == "a\n'=1+1\n'@x\nfine\n"


def test_a_plan_that_the_journal_does_not_name_is_refused(drafted: SmallRun, tmp_path: Path) -> None:
    run = drafted.copy()
    run.run_dir = tmp_path / "runs" / "small-run"
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "plan.json").write_bytes((drafted.run_dir / "plan.json").read_bytes() + b"\n")
    run.write()

    with pytest.raises(PlanError, match=r"plan\.json"):
        write_report([run.run_dir], tmp_path / "output")


def test_a_folder_that_is_no_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run"):
        write_report([tmp_path], tmp_path / "output")
    with pytest.raises(UsageError, match="at least one"):
        write_report([], tmp_path / "output")
