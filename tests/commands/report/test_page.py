"""The page says what the document says, stays by itself, and does what hands ask of it: in a real browser."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sysbench.commands.report import page
from sysbench.commands.report import page as page_pictures
from sysbench.commands.report.document import Basis, Document, GroupedCaution, Picture, ReportedFinding, Section
from sysbench.commands.report.first_page import headlines
from sysbench.render.csv import csv_text
from sysbench.render.pages import asset
from sysbench.render.table import Column, Measure, Remark, Table, Word
from sysbench.render.terms import Term
from tests.render.browser import Browser, browser, missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

needs_browser = pytest.mark.skipif(missing() is not None, reason=missing() or "")

HOSTILE = (
    "</script></template><script>window.broken=1</script><img src=x onerror=window.broken=2>"
    "{{script}}&amp;'\"\x00\u202e"
)
ENDLESS = "x" * 10_000
ESCAPE, ENTER, TAB = "\ue00c", "\ue007", "\ue004"


def curve(points: int = 5) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), facecolor="white")
    axes = figure.add_axes((0.1, 0.15, 0.85, 0.75))
    axes.plot(range(points), [0.5 + (3 * number) % 7 for number in range(points)], "o-", label="forward <b>")
    axes.set_xlabel("context")
    axes.legend()
    return figure


TIMES = Table(
    "times",
    "mean ± standard deviation",
    (
        Column("size", "size"),
        Column("ctx", "ctx"),
        Column("forward", "forward", "s", group="measured"),
        Column("backward", "backward", "s", group="measured"),
        Column("speedup", "speed-up", "ratio", note="of the medians"),
    ),
    (
        ("small", 1024, Measure(0.1, 0.02), Measure(0.20001, 0.01), Measure(1.5, low=1.4, high=1.6)),
        ("medium", 128, Measure(0.009, 0.0004), Measure(0.20003, 0.01, tone="good"), None),
        ("large", 512, Word("oom", "bad"), None, Measure(0.9, low=0.8, high=1.1)),
        ("large", 256, Measure(1.25, 0.1), Measure(0.20002, 0.01), Measure(12.0, low=11.0, high=13.0)),
    ),
    axes=2,
    notes=("ten steps each",),
)
WIDE = Table(
    "wide",
    "every step",
    (
        Column("cell", "cell"),
        Column("phase", "phase"),
        *(Column(f"step{number}", f"step {number}", "s") for number in range(30)),
    ),
    tuple((f"cell {row}", "forward", *(Measure(row + number / 7, 0.1) for number in range(30))) for row in range(40)),
    axes=2,
)


def section(**changes: Any) -> Section:
    whole = Section(
        anchor="sizes",
        title="Model sizes",
        question="How long does a step take?",
        run="sizes",
        machine="",
        subject=("batch 4", "train"),
        origin="measured",
        findings=(
            ReportedFinding("backward takes 2.03 ± 0.02 × forward", (Basis("sizes", ("small ctx 1024", "medium")),)),
        ),
        tables=(TIMES, WIDE),
        pictures=(Picture("sizes-steps", "Steps over the context", curve),),
        remarks=(Remark("outcome", "large ctx 512: oom"), Remark("note", "a note", "a remedy")),
    )
    return replace(whole, **changes)


SIMULATED = section(
    anchor="memory",
    title="Memory",
    run="memory",
    origin="simulated",
    findings=(ReportedFinding("2.7b fits", (Basis("memory", ("2.7b",)),), "simulated"),),
    tables=(replace(TIMES, name="peaks"),),
    pictures=(Picture("memory-peaks", "Peaks", curve, "simulated"),),
)

DOCUMENT = Document(
    title="Where time goes",
    question="What does a step cost?",
    run_lines=("sizes: today, complete — sysbench time", "memory: today, complete — sysbench memory"),
    environment=(Table("machines", "machines", (Column("machine", "machine"),), (("bench",),)),),
    findings=(ReportedFinding("both agree", (Basis("sizes", ("small",)), Basis("memory", ("2.7b",)))),),
    pictures=(Picture("everything", "All of it", curve),),
    sections=(section(), SIMULATED),
    cautions=(GroupedCaution("other programs ran", "close them", (Basis("sizes", ("small",)),)),),
    method=(Term("forward", "from tokens to logits"),),
)


def hostile(text: str) -> Document:
    """A document in which everything that comes from outside is called this."""
    cells = (Basis(text, (text, text)),)
    table = Table(
        text, text, (Column(text, text), Column("n", text, "s", group=text)), ((text, Word(text)),), 1, (text,)
    )
    one = section(
        title=text,
        question=text,
        run=text,
        machine=text,
        subject=(text,),
        findings=(ReportedFinding(text, cells),),
        tables=(table, replace(table, rows=((text, Measure(1.0)), ("short", Measure(2.0))))),
        pictures=(Picture("one", text, curve),),
        remarks=(Remark("note", text, text),),
    )
    return Document(
        text, text, (text,), (table,), (ReportedFinding(text, cells),), (), (one,),
        (GroupedCaution(text, text, cells),), (Term(text, text),),
    )  # fmt: skip


class Elements(HTMLParser):
    """Every element of a page with its attributes, and what stands in the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)


@pytest.fixture(scope="module")
def text() -> str:
    return page.render(DOCUMENT)


# --- what the page is


def test_the_page_refers_to_nothing_outside_itself(text: str) -> None:
    assert not re.search(r"https?://|//cdn|@import|\bimport\s*\(|<link|<iframe|\bfetch\(|XMLHttpRequest", text)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    for tag, attributes in Elements(text).found:
        assert "src" not in attributes or (attributes["src"] or "").startswith("data:image/png;base64,"), tag
        assert (attributes.get("href") or "#").startswith("#"), tag
    assert "default-src 'none'" in text


def test_only_the_pages_own_scripts_may_run(text: str) -> None:
    [script] = Elements(text).scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in text
    assert not [key for _, attributes in Elements(text).found for key in attributes if key.startswith("on")]


def test_every_link_leads_somewhere_and_every_anchor_is_there_once(text: str) -> None:
    found = Elements(text).found
    anchors = [attributes["id"] for _, attributes in found if "id" in attributes]
    targets = {(attributes["href"] or "").removeprefix("#") for _, attributes in found if "href" in attributes}
    assert len(anchors) == len(set(anchors))
    assert targets
    assert targets <= set(anchors)


def test_the_head_says_of_how_many_runs_and_on_which_machines(text: str) -> None:
    assert "Made of 2 runs on bench<" in text
    machines = replace(DOCUMENT.environment[0], rows=(("one",), ("two",), ("three",), ("four",)))
    assert "runs on one, two and 2 more<" in page.render(replace(DOCUMENT, environment=(machines,), pictures=()))


def test_a_document_of_nothing_is_still_a_page() -> None:
    text = page.render(Document("Nothing", "", (), (), (), (), (), (), ()))
    assert "<h1>Nothing</h1>" in text
    assert "_findings_title" not in text


def test_nothing_of_what_comes_from_outside_is_markup() -> None:
    text = page.render(hostile(HOSTILE))
    tags = {tag for tag, _ in Elements(text).found}
    assert len(Elements(text).scripts) == 1
    assert "img" not in tags
    assert not [key for _, attributes in Elements(text).found for key in attributes if key.startswith("on")]
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "{{script}}" in text


def test_halves_of_characters_do_not_keep_the_page_from_being_written() -> None:
    assert b"broken   name" in page.render(hostile("broken \ud800 name")).encode()


def test_endless_names_are_shortened_where_they_are_shown_and_whole_where_they_are_copied() -> None:
    text = page.render(hostile(ENDLESS))
    shown = re.sub(r"<template.*?</template>", "", text, flags=re.DOTALL)
    assert ENDLESS in text
    assert not re.search("x{2001}", shown)


def test_numbers_are_sorted_by_all_of_their_digits(text: str) -> None:
    for row in TIMES.rows:
        for cell in row:
            if isinstance(cell, Measure):
                assert f'data-value="{cell.value!r}"' in text


def test_what_is_simulated_says_so_wherever_it_is_seen(text: str) -> None:
    part = text[text.index('<section id="memory"') : text.index('<section id="_cautions"')]
    for piece in (
        r"<h2.*?</h2>",
        r"<li><p>2\.7b fits.*?</li>",
        r"<figcaption>.*?</figcaption>",
        r'<p class="table-title.*?</p>',
    ):
        found = re.search(piece, part, re.DOTALL)
        assert found is not None
        assert "SIMULATED" in found[0]
    measured = text[text.index('<section id="sizes"') : text.index('<section id="memory"')]
    assert "SIMULATED" not in measured
    assert "simulated were computed with a model" in text[: text.index('<section id="_findings"')]


def test_the_summary_has_the_first_findings_of_every_section() -> None:
    findings = tuple(ReportedFinding(f"finding {number}", ()) for number in range(30))

    def before_the_sections(count: int) -> str:
        names = [f"part-{number}" for number in range(count)]
        sections = tuple(section(anchor=name, run=name, findings=findings, pictures=()) for name in names)
        text = page.render(replace(DOCUMENT, sections=sections, pictures=(), headlines=headlines(sections)))
        return text[: text.index('<section id="part-0"')]

    summary = before_the_sections(4).partition('<section id="_findings"')[2]
    assert [summary.count(f'href="#part-{number}"') for number in range(4)] == [2, 2, 2, 2]
    assert "Finding 1. " in summary
    assert "Finding 2. " not in summary
    assert before_the_sections(15).count('href="#part-14"') == 2, "in the contents and the summary"


def test_the_only_section_begins_with_its_findings_and_they_are_not_repeated_above_it() -> None:
    only = section(findings=(ReportedFinding("the only one", ()),), pictures=())
    text = page.render(replace(DOCUMENT, findings=(), sections=(only,), pictures=()))
    assert text.count("The only one.") == 1
    assert '"_findings"' not in text
    assert '"#_findings"' not in text


# --- colours


def palette(name: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", asset(page.TEMPLATE_FOLDER, name)))


def contrast(one: str, other: str) -> float:
    """Of two colours: WCAG 2.2, from relative luminance."""

    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("name", ["light.css", "dark.css"])
def test_everything_written_can_be_read_on_what_it_stands_on(name: str) -> None:
    colours = palette(name)
    pairs = [
        *itertools.product(("ink", "quiet", "accent", "good", "bad"), ("page", "card", "stripe")),
        ("warn-ink", "warn"),
    ]
    for ink, ground in pairs:
        assert contrast(colours[ink], colours[ground]) >= 4.5, f"{ink} on {ground}"
    # What is no text, but has to be seen: WCAG asks for 3.
    assert contrast(colours["strong-line"], colours["page"]) >= 3
    assert contrast(colours["accent"], colours["page"]) >= 3


# --- pictures


def test_pictures_have_their_text_as_text_and_names_of_their_own() -> None:
    twice = [page_pictures.picture_html(Picture(f"a{number}", "A curve", curve), number) for number in (1, 2)]
    anchors = [re.findall(r'\bid="([^"]+)"', each) for each in twice]
    assert anchors[0]
    assert not set(anchors[0]) & set(anchors[1])
    for figure, names in zip(twice, anchors, strict=True):
        assert "context</text>" in figure
        assert "forward &lt;b&gt;" in figure
        assert 'aria-label="A curve"' in figure
        assert "<style" not in figure
        assert "<metadata" not in figure
        referred = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', figure))
        assert {one or other for one, other in referred} <= set(names)


def test_a_picture_that_would_slow_the_page_down_is_put_there_as_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_pictures, "MAX_SVG_BYTES", 30_000)
    figure = page_pictures.picture_html(Picture("a", "Many points", lambda: curve(500)), 1)
    assert "<svg" not in figure
    assert 'alt="Many points"' in figure


# --- in a browser


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def shown(window: Browser, report: Path) -> Iterator[Browser]:
    window.resize(1280)
    window.prefer()
    window.open(report)
    window.settle()
    yield window
    assert window.complaints() == []


def column(window: Browser, number: int) -> list[str]:
    """The first table's column, from top to bottom."""
    texts: list[str] = window.run(
        "return [...document.querySelector('#sizes_1 tbody').rows].map(row => row.cells[arguments[0]].textContent)",
        number,
    )
    return texts


def heading(number: int) -> str:
    """Where the sorting button of one of the first table's columns is."""
    places = ["tr:first-child th:nth-child(1)", "tr:first-child th:nth-child(2)", "tr:last-child th:nth-child(1)"]
    return f"#sizes_1 {[*places, 'tr:last-child th:nth-child(2)', 'tr:first-child th:nth-child(4)'][number]} button"


def sorted_as(window: Browser, number: int) -> str:
    return str(window.run("return document.querySelector(arguments[0]).parentElement.ariaSort", heading(number)))


@needs_browser
def test_a_click_sorts_by_the_number_and_not_by_what_is_shown_of_it(shown: Browser) -> None:
    report = column(shown, 0)
    assert len({text.split()[0] for text in column(shown, 3) if text[0].isdigit()}) == 1, "these look the same"
    shown.press(heading(3))
    assert sorted_as(shown, 3) == "ascending"
    assert column(shown, 1) == ["1024", "256", "128", "512"]
    shown.press(heading(3))
    assert sorted_as(shown, 3) == "descending"
    assert column(shown, 1) == ["128", "256", "1024", "512"]
    shown.press(heading(3))
    assert sorted_as(shown, 3) == "none"
    assert column(shown, 0) == report


@needs_browser
def test_words_in_place_of_numbers_come_last_whichever_way_it_is_sorted(shown: Browser) -> None:
    for _ in range(2):
        shown.press(heading(2))
        assert column(shown, 2)[-1] == "oom"
    assert sorted_as(shown, 2) == "descending"
    assert column(shown, 0)[0] == "large"


@needs_browser
def test_the_keyboard_sorts_as_well_and_one_column_at_a_time(shown: Browser) -> None:
    shown.press(heading(2))
    shown.run("document.querySelector(arguments[0]).focus()", heading(0))
    shown.keys(TAB)
    shown.keys(ENTER)
    assert sorted_as(shown, 1) == "ascending"
    assert sorted_as(shown, 2) == "none"
    assert column(shown, 1) == ["128", "256", "512", "1024"]
    assert shown.text("#said") == "sorted by ctx, ascending"
    shown.keys(" ")
    assert column(shown, 1) == ["1024", "512", "256", "128"]


@needs_browser
def test_a_table_can_be_copied_in_full_precision(shown: Browser) -> None:
    held = shown.run("return document.querySelector('#sizes_1 template.csv').content.textContent")
    assert held == csv_text(TIMES)
    shown.run(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => { window.taken = text; }}})"
    )
    shown.press("#sizes_1 .table-tools button")
    assert shown.run("return window.taken") == csv_text(TIMES)
    assert shown.text("#sizes_1 .table-tools button") == "Copied"


@needs_browser
def test_headings_and_axes_stay_while_a_long_and_wide_table_passes(shown: Browser) -> None:
    axes = [f"#sizes_2 tbody tr:nth-child(30) td:nth-child({number})" for number in (1, 2)]
    before = [shown.box(axis) for axis in axes]
    shown.run("document.querySelector('#sizes_2 .box').scrollTo(500, 400)")
    shown.settle()
    scrolled = shown.run("return document.querySelector('#sizes_2 .box').scrollTop")  # as far as there are rows
    assert scrolled > 200
    box, head = shown.box("#sizes_2 .box"), shown.box("#sizes_2 thead")
    after = [shown.box(axis) for axis in axes]
    assert head[1] == pytest.approx(box[1], abs=2)
    assert [each[0] for each in after] == pytest.approx([each[0] for each in before], abs=1)
    assert [each[1] for each in after] == pytest.approx([each[1] - scrolled for each in before], abs=1)


def seen(window: Browser) -> list[float]:
    """The part of the enlarged figure that is in view."""
    return [
        float(each)
        for each in window.run("return document.querySelector('.stage svg').getAttribute('viewBox')").split()
    ]


@needs_browser
def test_a_figure_opens_large_zooms_moves_and_goes_back_to_its_place(shown: Browser) -> None:
    before = shown.run("return document.querySelector('#_picture_sizes-steps .picture').innerHTML")
    shown.press("#_picture_sizes-steps svg")
    assert shown.run("return document.getElementById('large').open")
    assert shown.text("#large-caption").endswith("Steps over the context")
    assert shown.box(".stage svg")[2] > 1200
    whole = seen(shown)
    shown.keys("+")
    zoomed = seen(shown)
    assert zoomed[2] == pytest.approx(whole[2] / 1.5, abs=0.01)
    shown.keys("\ue014")
    assert seen(shown)[0] > zoomed[0]
    shown.keys("0")
    assert seen(shown) == pytest.approx(whole)
    shown.keys(ESCAPE)
    assert not shown.run("return document.getElementById('large').open")
    after = shown.run("return document.querySelector('#_picture_sizes-steps .picture').innerHTML")
    view = re.compile(r'viewBox="[^"]*"')
    assert view.sub("", after) == view.sub("", before)


@needs_browser
def test_the_wheel_zooms_to_where_it_points_and_the_mouse_moves(shown: Browser) -> None:
    shown.run("document.querySelector('#_picture_sizes-steps figcaption button').focus()")
    shown.keys(ENTER)
    x, y, width, height = shown.box(".stage")
    point = (x + width * 0.7, y + height * 0.4)

    def under() -> list[float]:
        return list(
            shown.run(
                "const s = document.querySelector('.stage svg'), p = new DOMPoint(...arguments);"
                "const q = p.matrixTransform(s.getScreenCTM().inverse()); return [q.x, q.y]",
                *map(round, point),
            )
        )

    before = under()
    shown.wheel(*point, -240)
    assert seen(shown)[2] < 360
    assert under() == pytest.approx(before, abs=0.5)
    start = seen(shown)
    shown.drag(point, (point[0] - 100, point[1]))
    assert seen(shown)[0] > start[0]
    shown.press("#large [data-does=close]")
    assert not shown.run("return document.getElementById('large').open")


@needs_browser
def test_two_fingers_zoom(shown: Browser) -> None:
    shown.press("#_picture_sizes-steps svg")
    whole = seen(shown)
    x, y, width, height = shown.box(".stage")
    middle = (x + width / 2, y + height / 2)
    shown.touch(
        [(middle[0] - 40, middle[1]), (middle[0] - 160, middle[1])],
        [(middle[0] + 40, middle[1]), (middle[0] + 160, middle[1])],
    )
    assert seen(shown)[2] < whole[2] / 2
    shown.keys(ESCAPE)


def ground(window: Browser) -> str:
    return str(window.run("return getComputedStyle(document.body).backgroundColor"))


@needs_browser
def test_the_page_is_as_dark_as_the_system_until_the_switch_says_otherwise(shown: Browser) -> None:
    assert ground(shown) == "rgb(255, 255, 255)"
    shown.prefer(dark=True)
    assert ground(shown) == "rgb(16, 20, 24)"
    # Figures follow: their ground, and the colour of their text, which can be read on it.
    assert shown.run("return getComputedStyle(document.querySelector('.picture')).backgroundColor") == "rgb(24, 29, 35)"
    labels = "return [...document.querySelectorAll('.picture svg text')].map((text) => getComputedStyle(text).fill)"
    assert set(shown.run(labels)) == {"rgb(232, 235, 239)"}
    shown.press("#theme")
    assert set(shown.run(labels)) == {"rgb(34, 34, 34)"}
    assert ground(shown) == "rgb(255, 255, 255)"
    shown.press("#theme")
    assert ground(shown) == "rgb(16, 20, 24)"
    shown.prefer(dark=True, paper=True)
    assert ground(shown) == "rgb(255, 255, 255)"


@needs_browser
@pytest.mark.parametrize("content", [DOCUMENT, hostile(ENDLESS)], ids=["usual", "endless"])
def test_a_narrow_page_does_not_scroll_sideways(window: Browser, tmp_path: Path, content: Document) -> None:
    (tmp_path / "report.html").write_text(page.render(content), encoding="utf-8")
    window.prefer()
    window.resize(320)
    window.open(tmp_path / "report.html")
    # The last is also a window of 1280 at a zoom of 200%.
    for width in (320, 390, 640):
        window.resize(width)
        window.settle()
        assert window.run("return document.documentElement.scrollWidth") == width
        assert not window.run("return document.querySelector('.contents details').open")


@needs_browser
def test_an_endless_name_in_a_table_leaves_room_for_the_numbers(window: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page.render(hostile(ENDLESS)), encoding="utf-8")
    window.resize(1280)
    window.open(tmp_path / "report.html")
    for cell in ("tbody td", "thead th"):
        assert window.run("return document.querySelector(arguments[0]).scrollWidth", cell) < 640


@needs_browser
def test_hostile_names_run_nothing(window: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page.render(hostile(HOSTILE)), encoding="utf-8")
    window.open(tmp_path / "report.html")
    window.settle()
    assert window.run("return window.broken === undefined")
    assert window.complaints() == []


def shown_of(window: Browser, selector: str) -> int:
    """How many of these elements can be seen."""
    return int(
        window.run(
            "return [...document.querySelectorAll(arguments[0])].filter(each => each.getClientRects().length).length",
            selector,
        )
    )


@needs_browser
def test_on_paper_nothing_is_cut_folded_away_or_there_to_be_pressed(shown: Browser) -> None:
    shown.prefer(paper=True)
    shown.resize(700)
    shown.settle()
    assert not shown_of(shown, "button:not(th button), dialog")
    assert not shown_of(shown, "nav, #sizes details:not(.more)"), "no lists that only a screen needs"
    assert shown.box("#sizes_1 table")[2] <= 700
    # A button would not be painted where headings are repeated on the next sheet.
    assert shown.run("return getComputedStyle(document.querySelector('th button')).display") == "contents"
    # This one gets paper that lies across.
    assert shown.box("#sizes_2 table")[2] <= 1030
    box, table = shown.box("#sizes_2 .box"), shown.box("#sizes_2 table")
    assert box[3] >= table[3]
    assert shown.pdf().startswith(b"%PDF-")


@needs_browser
@pytest.mark.parametrize("width", [700, 1400])
def test_a_table_shows_all_its_columns_or_says_that_there_are_more(shown: Browser, width: int) -> None:
    shown.resize(width)
    shown.settle()
    cut, told = (
        shown.run(
            "return [...document.querySelectorAll('.table')].filter((table) => "
            f"{{ const box = table.querySelector('.box'); return {condition}; }}).map((table) => table.id)"
        )
        for condition in (
            "box.scrollWidth > box.clientWidth + 1",
            "getComputedStyle(table.querySelector('.table-title'), '::after').content.includes('scroll')",
        )
    )
    assert told == cut
    assert width > 700 or cut, "a narrow window cuts the widest table"


@needs_browser
def test_everything_can_be_read_without_scripts(window: Browser, text: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(
        re.sub(r"<script>.*</script>", "<script></script>", text, flags=re.DOTALL).replace(
            "<html", '<html data-ready="yes"'
        )
    )
    window.prefer()
    window.resize(1280)
    window.open(path)
    said = window.text("body")
    for part in (
        "Backward takes 2.03",
        "mean ± standard deviation",
        "oom",
        "close them",
        "from tokens to logits",
        "bench",
    ):
        assert part in said
    assert window.box("#_picture_sizes-steps svg")[2] > 300
    assert not shown_of(window, "button")
    window.press("#sizes details summary")
    assert window.run("return document.querySelector('#sizes details').open")
    window.complaints()
