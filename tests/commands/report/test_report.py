"""A report: what becomes of records, and how it is written as Markdown, LaTeX, a long table, and in the terminal."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console

from sysbench.command import Kind, kinds
from sysbench.commands.report import agreement, page, screen
from sysbench.commands.report.assemble import TITLE, assemble_document, first_page_of
from sysbench.commands.report.document import Basis, Document, Finding, ReportedRun, reported_commands
from sysbench.commands.report.text_formats import csv_file, latex_files, latex_text, markdown_files, markdown_text
from sysbench.commands.report.wording import ORIGIN_MARKS, pictures_of
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.kinds import command_of
from sysbench.log.outcomes import Caution
from sysbench.log.records import RunRecord
from sysbench.render.findings import Statement
from sysbench.render.table import Measure
from sysbench.render.terminal import SheetView
from tests import fixtures_timing
from tests.commands.time import test_predicted
from tests.fixtures_runs import KINDS, record, stream
from tests.fixtures_timing import TWO_CORES
from tests.processes import HANG_S

HOSTILE = [
    "[bold red]evil[/] [link=file:///etc]x[/link]",
    "<script>alert(1)</script>",
    "$\\input{/etc/passwd}$ \\write18{id} _%#&^~{}",
    "| pipe | `code` **bold** [a](javascript:b) ![i](http://i)",
    "\x1b[2J\x1b]0;title\x07 \u202egnp.exe",
    "1. one\n- two\n# three",
    "--flag ,,quoted'' ?`!`",
    "[optional] * starred",
    "模型 🚀 ∬ \ud800",
]


ORDER = [command.name for command in reported_commands()]


def run(kind: Kind, name: str = "", **changes: Any) -> ReportedRun:
    return ReportedRun(kind, record(kind, name), **changes)


@pytest.fixture(scope="module")
def whole() -> Document:
    return assemble_document([run(kind) for kind in ORDER])


@pytest.fixture(scope="module", params=HOSTILE, ids=range(len(HOSTILE)))
def hostile(request: pytest.FixtureRequest) -> tuple[str, Document]:
    name = str(request.param)
    runs = [run(kind, name, title=name, question=name, note=name) for kind in KINDS]
    found = assemble_document(runs, title=name, question=name, missing_runs=[name])
    said = Finding(name, (Basis(name, (name,)),), "mixed")
    return name, replace(found, findings=(said,))


# --- the document


def test_every_command_has_findings_tables_and_pictures(whole: Document) -> None:
    assert [section.run for section in whole.sections] == ORDER
    assert sorted(ORDER) == sorted(kinds())
    for section in whole.sections:
        assert section.tables, section.run
        if section.run not in ("calibrate", "loop"):  # whose tables say it all
            assert section.findings, section.run
        if section.run not in ("calibrate", "loop", "fit", "accum"):  # whose tables say all of it
            on_first_page = [each for each in whole.pictures if each.name.startswith(f"{section.anchor}-")]
            assert section.pictures or on_first_page, section.run


def test_what_a_finding_rests_on_is_among_the_cells_of_its_run(whole: Document) -> None:
    runs = {kind: run(kind) for kind in KINDS}
    labels = {kind: {each.label(cell) for cell in each.record.cells} for kind, each in runs.items()}
    for section in whole.sections:
        for finding in section.findings:
            assert finding.bases, finding.text
            for basis in finding.bases:
                assert basis.run == section.run
                assert set(basis.cells) <= labels[section.run], finding.text  # type: ignore[index]


def test_names_of_pictures_and_anchors_are_unique_and_fit_for_files() -> None:
    found = assemble_document(
        [ReportedRun("a run", record("time")), ReportedRun("a-run", record("time", machine=TWO_CORES))]
    )
    names = [picture.name for section in found.sections for picture in section.pictures]
    anchors = [section.anchor for section in found.sections]
    for each in (names, anchors):
        assert len(set(each)) == len(each)
        assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in each)


def test_the_same_records_make_the_same_report() -> None:
    first, second = (assemble_document([run(kind) for kind in ORDER]) for _ in range(2))
    for writer in (markdown_text, latex_text):
        assert writer(first, "files") == writer(second, "files")
    assert csv_file(first, "r") == csv_file(second, "r")
    # Pictures take their time: those of one command stand for all.
    first, second = (assemble_document([run("accum")]) for _ in range(2))
    assert page.render(first) == page.render(second)
    for files in (markdown_files, latex_files):
        assert list(files(first, "r")) == list(files(second, "r"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_at_any_point_can_be_reported(kind: Kind) -> None:
    events = stream(kind)
    cuts = sorted({1, 2, 3, *range(4, len(events), max(1, len(events) // 6))})
    for cut in cuts:
        found = assemble_document([ReportedRun(kind, command_of(kind).records().fold(events[:cut]))])
        (section,) = found.sections
        assert any("not complete" in remark.text for remark in section.remarks), cut
        assert "unfinished" in found.run_lines[0]
        assert markdown_text(found, "files")
        assert latex_text(found, "files")
        assert csv_file(found, "r")


def test_a_caution_is_said_once_with_all_the_cells_it_is_about() -> None:
    doubt = Caution(code="drift", message="the clock fell", remedy="cool it")
    runs = []
    for name in ("one", "two"):
        clean = record("time")
        cells = [
            cell.model_copy(update={"cautions": [doubt] if number < 2 else []})
            for number, cell in enumerate(clean.cells)
        ]
        runs.append(ReportedRun(name, clean.model_copy(update={"cells": cells})))
    caution, *kept_out = assemble_document(runs).cautions
    assert all(each.message.startswith("Excluded from") for each in kept_out)
    assert (caution.message, caution.remedy) == ("the clock fell", "cool it")
    labels = tuple(runs[0].label(cell) for cell in runs[0].record.cells[:2])
    assert caution.bases == (Basis("one", labels), Basis("two", labels))


def drifting(name: str, messages: Iterable[str]) -> ReportedRun:
    """A run with a caution of this code in its first cells."""
    clean = record("time")
    cells = [
        cell.model_copy(update={"cautions": [Caution(code="drift", message=message, remedy="cool it")]})
        for cell, message in zip(clean.cells, messages, strict=False)
    ]
    return ReportedRun(name, clean.model_copy(update={"cells": cells}))


def test_messages_with_other_numbers_in_them_are_one_caution_with_their_range() -> None:
    runs = [drifting("one", [f"by {number}%" for number in range(8)]), drifting("two", ["by 9%", "by 10.5%"])]
    caution = assemble_document(runs).cautions[0]
    assert caution.message == "by 0 to 10.5%"
    assert caution.message_by_run == {"one": "by 0 to 7%", "two": "by 9 to 10.5%"}
    assert [len(basis.cells) for basis in caution.bases] == [8, 2]


def test_messages_in_other_words_are_cautions_of_their_own() -> None:
    one, two = drifting("one", ["by 2 ms", "by 3 ms", "by 1 s"]), drifting("two", ["by 4 s"])
    by_ms, by_s, *_ = assemble_document([one, two]).cautions
    labels = [one.label(cell) for cell in one.record.cells]
    assert (by_ms.message, by_ms.bases) == ("by 2 to 3 ms", (Basis("one", tuple(labels[:2])),))
    assert by_s.message == "by 1 to 4 s"
    assert by_s.message_by_run == {"one": "by 1 s", "two": "by 4 s"}


def test_a_summary_has_findings_and_cautions_and_no_tables_of_runs(whole: Document) -> None:
    short = first_page_of(whole)
    assert {section.anchor for section, _ in short.headlines} == {
        each.anchor for each in whole.sections if each.findings
    }
    assert (short.cautions, short.environment, short.overview) == (whole.cautions, whole.environment, whole.overview)
    assert (short.sections, short.pictures) == ((), ())
    remarks = [remark.text for sheet in screen.sheets(short) for remark in sheet.remarks if remark.kind == "finding"]
    assert len(remarks) == len(set(remarks)) == len(short.headlines) + len(short.findings)
    only = first_page_of(assemble_document([run("time")]))
    assert [finding for _, finding in only.headlines] == list(assemble_document([run("time")]).sections[0].findings)


def test_the_first_page_has_all_headline_numbers_and_at_most_four_figures(whole: Document) -> None:
    (table,) = whole.overview
    titles = {section.title for section in whole.sections if section.run in ("time", "memory", "attention")}
    assert {row[0] for row in table.rows} >= titles
    cells = [cell for cell in run("memory").record.cells if cell.outcome == "ok"]
    (row,) = (row for row in table.rows if row[1] == "peak" and row[2] == "simulated")
    peaks = [cell.peak_allocated_bytes for cell in cells]
    assert [each.value for each in row if isinstance(each, Measure)] == [min(peaks), max(peaks)]
    assert 1 <= len(whole.pictures) <= 4
    names = [picture.name for picture in pictures_of(whole)]
    assert len(names) == len(set(names))


def test_an_excluded_cell_is_in_no_range_of_the_first_page() -> None:
    def slow(name: str, doubted: bool) -> ReportedRun:
        found = record("time", machine=TWO_CORES)
        caution = Caution(code="threads-wait", message="", remedy="")
        slowest = max(found.cells, key=lambda cell: samples.median_s if (samples := cell.samples("step")) else 0.0)
        cells = [
            cell.model_copy(update={"cautions": [caution] if doubted and cell is slowest else []})
            for cell in found.cells
        ]
        return ReportedRun(name, found.model_copy(update={"cells": cells}))

    (table,) = assemble_document([slow("sound", doubted=False), slow("doubted", doubted=True)]).overview
    sound, doubted = (row for row in table.rows if row[1] == "step")
    longest, without = (max(each.value for each in row if isinstance(each, Measure)) for row in (sound, doubted))
    assert without < longest
    assert table.excluded == {table.rows.index(doubted)}


def test_the_first_screen_has_a_finding_of_every_run(whole: Document) -> None:
    first, *_ = screen.sheets(whole)
    for section in whole.sections:
        for finding in section.findings[:1]:
            (said,) = [remark.text for remark in first.remarks if finding.text.removesuffix(".") in remark.text]
            assert (f" {ORIGIN_MARKS[finding.origin].capitalize()}: " in said) == (finding.origin != "measured"), (
                section.run
            )


def test_each_section_says_the_numbers_of_its_own_cells_in_every_format() -> None:
    def busy(name: str, *shares: int) -> ReportedRun:
        doubts = [Caution(code="host-busy", message=f"others used {share}%", remedy="close") for share in shares]
        clean = fixtures_timing.record(TimeSpec(size="small", ctx="128,512"))
        cells = [cell.model_copy(update={"cautions": [doubt]}) for cell, doubt in zip(clean.cells, doubts, strict=True)]
        return ReportedRun(name, clean.model_copy(update={"cells": cells}))

    found = assemble_document([busy("one", 109, 109), busy("two", 17, 29)])
    for text, begin, end in (
        (markdown_text(found, "files"), "\n## ", "\n## Cautions"),
        (latex_text(found, "files"), "\\section{", "\\section*{Cautions}"),
        (page.render(found), '<section id="two"', '<section id="_cautions"'),
    ):
        second = text[: text.index(end)].rpartition(begin)[2]
        assert "109%" not in second
        assert "others used 17 to 29" in second
        assert "close" in second


def test_two_machines_are_both_listed_and_every_section_says_its_own() -> None:
    here = ReportedRun("here", record("time"))
    there = ReportedRun("there", record("time", machine=TWO_CORES))
    found = assemble_document([here, there])
    machines = found.environment[0]
    assert [row[0] for row in machines.rows] == ["bench", "bench (2)"]
    assert [section.machine for section in found.sections] == ["bench", "bench (2)"]
    for text in (markdown_text(found, "files"), latex_text(found, "files")):
        assert "on bench (2)" in text
    software = next(table for table in found.environment if table.name == "software")
    assert [row[-1] for row in software.rows] == ["here", "there"]
    assert assemble_document([here]).sections[0].machine == ""


def test_accelerators_are_listed_with_their_memory(whole: Document) -> None:
    (row,) = whole.environment[0].rows
    assert row[0] == "bench"
    assert str(row[-1]).startswith("cuda:0 NVIDIA A100-SXM4-80GB (80.0 GiB, compute capability 8.0")


def test_a_gpu_that_was_simulated_is_in_the_environment_as_what_was_assumed(whole: Document) -> None:
    simulated = next(table for table in whole.environment if table.name == "simulated")
    assert [row[0] for row in simulated.rows] == ["NVIDIA A100-SXM4-80GB"]
    assert simulated.rows[0][-1] == "memory"
    assert "assumed" in simulated.notes[0]
    assert [section.origin for section in whole.sections if section.run == "memory"] == ["simulated"]


def test_method_explains_the_words_that_occur_and_no_others() -> None:
    words = {term.word for term in assemble_document([run("time")]).method}
    assert {"forward", "backward", "optimizer", "step", "mode train", "fp32", "bf16", "95% interval"} <= words
    assert not words & {"tf32", "fp16", "mode inference", "simulated", "allocated", "kept for backward"}
    assert "simulated" in {term.word for term in assemble_document([run("memory")]).method}


def test_runs_of_one_command_are_told_apart_in_their_titles() -> None:
    small = fixtures_timing.record(TimeSpec(size=("small",), ctx=(128,)))
    large = fixtures_timing.record(TimeSpec(size=("large",), ctx=(128,)))
    titles = [
        section.title for section in assemble_document([ReportedRun("a", small), ReportedRun("b", large)]).sections
    ]
    assert titles == ["Time of a training step: small", "Time of a training step: large"]


def test_runs_that_are_alike_are_told_apart_by_their_names() -> None:
    small = fixtures_timing.record(TimeSpec(size=("small",), ctx=(128,)))
    sections = assemble_document([ReportedRun("time 1", small), ReportedRun("time 2", small)]).sections
    assert [section.title for section in sections] == [
        "Time of a training step (time 1)",
        "Time of a training step (time 2)",
    ]


def test_a_prediction_is_marked_once_in_each_heading() -> None:
    spec = TimeSpec(size=("tiny",), ctx=(128, 256), simulate=("h100",))
    predicted = test_predicted.record(spec, (0.01, "ok"), (0.02, "ok"))
    document = assemble_document([ReportedRun("time", predicted), run("accum")])
    for content in (markdown_text(document, "files"), latex_text(document, "files"), page.render(document)):
        lines = [line for line in content.splitlines() if "PREDICTED" in line and not line.startswith("<figure")]
        assert any("step time and phases" in line for line in lines)
        assert all(line.count("PREDICTED") == 1 for line in lines)
    out = io.StringIO()
    console = Console(file=out, width=200)
    for sheet in screen.sheets(document):
        console.print(SheetView(sheet))
    (heading,) = (line for line in out.getvalue().splitlines() if line.endswith("PREDICTED"))
    assert heading.count("PREDICTED") == 1
    assert "Predicted: The host is predicted" not in out.getvalue()


def test_every_run_is_named_with_how_it_ended_and_the_command_that_repeats_it() -> None:
    document = assemble_document([run("time")], missing_runs=["later: not there — sysbench accum"])
    run_lines = document.run_lines
    assert run_lines[0].startswith("time: 2026-11-20 13:50 UTC, complete, 8 cells (2 oom) — ")
    assert run_lines[0].endswith(
        "sysbench time --size small,xl --ctx 128,1024 --precision fp32,bf16 --warmup 2 --steps 8"
    )
    assert "later: not there" in markdown_text(document, "")
    assert "later: not there" in latex_text(document, "")
    assert "Made of 1 run on bench, 1 missing<" in page.render(document)


def test_titles_are_those_of_the_experiment_where_there_is_one() -> None:
    found = assemble_document(
        [run("time", title="Sizes", question="How long?", note="changed: no GPU")], title="All of it"
    )
    (section,) = found.sections
    assert (found.title, section.title, section.question) == ("All of it", "Sizes", "How long?")
    assert section.subject[-1] == "changed: no GPU"
    assert assemble_document([run("time")]).title == TITLE


def test_what_only_several_runs_show_comes_from_finders_that_get_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def finder(runs: Any) -> list[Finding]:
        seen.append([each.name for each in runs])
        return [Finding("together", tuple(each.basis(each.record.cells) for each in runs))]

    monkeypatch.setattr(agreement, "CROSS_RUN_FINDINGS", (finder,))
    found = assemble_document([run("time"), run("memory")])
    assert seen == [["time", "memory"]]
    assert [finding.text for finding in found.findings] == ["Together."]


def test_which_cells_are_kept_out_of_the_findings_is_said_among_the_cautions_and_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finder(record: TimeRecord) -> list[Statement]:
        return [Statement("cautions keep all of them out.", record.cells, True), Statement("it is fast", record.cells)]

    monkeypatch.setattr("sysbench.commands.time.findings.of_run", finder)
    found = assemble_document([run("time")])
    (section,) = found.sections
    assert [each.text for each in section.findings] == ["It is fast."]
    assert [each.message for each in found.cautions][-1] == "Cautions keep all of them out."
    headlines = assemble_document([run("memory"), run("time")]).headlines
    assert [finding.text for section, finding in headlines if section.anchor == "time"] == ["It is fast."]
    page_text = page.render(found)
    assert page_text.count("Cautions keep all of them out.") == 2, (
        "in their own part, and where the section points to it"
    )
    assert "Cautions keep all of them out." in markdown_text(found, "files").partition("## Cautions")[2]


# --- nothing of what others name is markup


def test_in_markdown_no_name_is_markup(hostile: tuple[str, Document]) -> None:
    _, found = hostile
    text = markdown_text(found, "files")
    for line in text.splitlines():
        # What is escaped is taken out; what is left is what this writer put there.
        bare = re.sub(r"\\[^\w\s]", "", line)
        bare = re.sub(r"</?sub>", "", re.sub(r"^!\[[^\[\]]*\]\(files/[a-z0-9-]+\.png\)$", "", bare))
        assert not re.search(r"[<>\[\]`]", bare.removeprefix("> ")), line
        if not bare.startswith("|"):
            assert "|" not in bare, line
    headings = re.findall(r"^(#+) ", text, re.MULTILINE)
    assert Counter(headings) == {"#": 1, "##": len(KINDS) + 4 + bool(found.cautions)}
    tables = [table for section in found.sections for table in section.tables]
    tables += [*found.overview, *found.environment]
    assert len(re.findall(r"^\| -{3,}:? \|", text, re.MULTILINE)) == len(tables)


def test_a_markdown_parser_sees_what_was_meant_and_nothing_else(hostile: tuple[str, Document]) -> None:
    name, found = hostile
    tokens = list(_tokens(markdown_text(found, "files")))
    kinds = Counter(token.type for token in tokens)
    tables = [table for section in found.sections for table in section.tables]
    tables += [*found.overview, *found.environment]
    assert kinds["table_open"] == len(tables)
    assert kinds["heading_open"] == 1 + len(KINDS) + 4 + bool(found.cautions)
    assert kinds["image"] == len(list(pictures_of(found)))
    assert {token.content for token in tokens if token.type.startswith("html")} == {"<sub>", "</sub>"}
    assert not {"link_open", "code_inline", "fence", "code_block", "hr", "ordered_list_open", "lheading"} & set(kinds)
    shown = {token.content for token in tokens if token.type == "inline"}
    plain = " ".join(name.split())
    heading = next(token for number, token in enumerate(tokens) if tokens[number - 1].type == "heading_open")
    assert "".join(child.content for child in heading.children or ()) == plain, shown


def _tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or ()


def test_every_row_of_a_markdown_table_has_as_many_cells(hostile: tuple[str, Document]) -> None:
    _, found = hostile
    for block in re.findall(r"(?:^\|.*\n)+", markdown_text(found, "files"), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


_COMMANDS = """
documentclass usepackage ifPDFTeX IfFileExists else fi setlength parindent parskip emergencystretch newsavebox
sysbenchbox newcommand sysbenchfit sbox footnotesize ifdim wd linewidth resizebox usebox sysbenchtogether par
medskip noindent begin end centering makeatletter makeatother sysbenchcaption def caption title author date
maketitle section emph item cdot textbf fbox parbox toprule midrule bottomrule cmidrule multicolumn
includegraphics textheight detokenize rightarrow textbackslash textasciicircum textasciitilde textless
textgreater textbar symbol textquotesingle textasciigrave pm times div leftarrow textmu mu sigma beta varepsilon
Sigma sum leq geq approx neq infty sqrt Vert textdegree textsuperscript textonehalf dots textbullet texteuro
"""


def latex_problems(text: str) -> list[str]:
    """What a LaTeX would stumble over, or would run though nobody here wrote it."""
    body = re.sub(r"(?m)^\s*%.*$", "", text.split(r"\makeatother")[1])
    problems = [f"command {name}" for name in re.findall(r"\\([a-zA-Z]+)", body) if name not in _COMMANDS.split()]
    plain = re.sub(r"\\\\|\\[{}$&#%_,]", "", body)
    problems += [f"character {letter!r}" for letter in plain if ord(letter) < 32 and letter != "\n"]
    problems += [f"character {letter!r}" for letter in plain if ord(letter) > 0x17F]
    depth = 0
    for letter in plain:
        depth += (letter == "{") - (letter == "}")
        if depth < 0:
            problems.append("a brace that closes nothing")
            break
    problems += [f"{depth} open braces"] if depth > 0 else []
    problems += ["$ without its partner"] if plain.count("$") % 2 else []
    problems += [f"unescaped {letter}" for letter in "#^_" if letter in re.sub(r"\\detokenize\{[^}]*\}", "", plain)]
    opened = [name for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body) if kind == "begin"]
    closed = [name for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body) if kind == "end"]
    problems += [] if Counter(opened) == Counter(closed) else ["environments"]
    return problems


def test_in_latex_no_name_is_a_command(hostile: tuple[str, Document]) -> None:
    _, found = hostile
    assert latex_problems(latex_text(found, "files")) == []


def test_every_row_of_a_latex_table_has_as_many_cells(hostile: tuple[str, Document]) -> None:
    _, found = hostile
    text = latex_text(found, "files")
    for columns, body in re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        for line in (each for each in body.splitlines() if each.endswith(r"\\")):
            spanned = sum(int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + spanned + 1 == len(columns), line


def test_what_latex_has_no_letter_for_is_named_by_its_number() -> None:
    found = latex_text(assemble_document([run("time", title="模型 né")]), "files")
    assert r"\section{[U+6A21][U+578B] né}" in found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
def test_latex_compiles(tmp_path: Path) -> None:
    name = " ".join(HOSTILE)
    found = assemble_document(
        [*(run(kind) for kind in KINDS), *(run(kind, name, title=name) for kind in KINDS)], title=name
    )
    for file in latex_files(found, "my report.tex"):
        path = tmp_path / file.name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(file.content)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "my report.tex"],
        cwd=tmp_path,
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, log[-3000:]
    assert "Missing character" not in log
    assert (tmp_path / "my report.pdf").stat().st_size > 50_000


def test_in_the_terminal_no_name_is_markup_and_none_moves_the_cursor(hostile: tuple[str, Document]) -> None:
    _, found = hostile
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="truecolor", legacy_windows=False)
    for sheet in screen.sheets(found):
        console.print(SheetView(sheet))
    shown = out.getvalue()
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "\x1b]8" not in shown, "no link"


def test_no_file_of_a_report_commands_a_terminal_and_all_can_be_written(hostile: tuple[str, Document]) -> None:
    _, found = hostile
    bare = replace(found, pictures=(), sections=tuple(replace(section, pictures=()) for section in found.sections))
    for files in (markdown_files, latex_files, lambda *given: [csv_file(*given)]):
        (file,) = files(bare, "r")
        text = file.content.decode("utf-8")
        assert not [letter for letter in text if ord(letter) < 32 and letter not in "\n\t"]
        assert "\u202e" not in text


# --- what each writer has to offer


def test_pictures_of_markdown_lie_beside_it_under_the_names_that_it_shows() -> None:
    *drawn, report = markdown_files(assemble_document([run("memory"), run("accum")]), "my report.md")
    assert report.name == "my report.md"
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", report.content.decode())
    assert drawn
    assert [name.replace("%20", " ") for name in shown] == [file.name for file in drawn]
    assert all(file.name.startswith("my report-files/") and file.content[:4] == b"\x89PNG" for file in drawn)


def test_pictures_of_latex_lie_beside_it_under_the_names_that_it_includes() -> None:
    *drawn, report = latex_files(assemble_document([run("memory"), run("accum")]), "report.tex")
    assert re.findall(r"\\detokenize\{([^}]+)\}", report.content.decode()) == [file.name for file in drawn]
    assert all(file.content[:5] == b"%PDF-" for file in drawn)


def test_what_is_simulated_is_marked_where_it_stands(whole: Document) -> None:
    text = markdown_text(whole, "files")
    section = text[text.index("## Memory of a training step") : text.index("## Attention")]
    assert len(re.findall(r"^\*\*.*\*\* \*\*SIMULATED\*\*$", section, re.MULTILINE)) == 3, "each of its tables"
    before = text[text.index("## Time of a training step") : text.index("## Memory of a training step")]
    assert "SIMULATED" not in before
    assert "were computed with a model of the GPU" in text[:400]
    assert r"\textbf{SIMULATED}" in latex_text(whole, "files")


def test_csv_has_every_row_of_every_table_with_where_it_is_from(whole: Document) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_file(whole, "report.csv").content.decode())))
    assert Counter((row["run"], row["table"]) for row in rows) == Counter(
        (section.run, table.name) for section in whole.sections for table in section.tables for _ in table.rows
    )
    (row,) = (
        row
        for row in rows
        if (row["table"], row["size"], row["ctx"], row["precision"]) == ("summary", "xl", "128", "bf16")
    )
    cell = next(
        cell
        for cell in record("time").cells
        if (cell.axes["size"], cell.axes["ctx"], cell.axes["precision"]) == ("xl", 128, "bf16")
    )
    assert float(row["forward_mean_s"]) == pytest.approx(cell.phases["forward"].wall.mean_s, rel=1e-8)
    assert float(row["forward_std_s"]) == pytest.approx(cell.phases["forward"].wall.std_s, rel=1e-8)
    assert row["origin"] == "measured"
    assert {row["origin"] for row in rows if row["run"] == "memory"} == {"simulated"}


def test_the_terminal_shows_findings_before_the_tables_they_are_read_from(whole: Document) -> None:
    out = io.StringIO()
    console = Console(file=out, width=140)
    for sheet in screen.sheets(whole):
        console.print(SheetView(sheet))
    shown = out.getvalue()
    finding = whole.sections[0].findings[0].text[:60]
    assert 0 < shown.index(finding) < shown.index(whole.sections[0].tables[0].title)
    assert shown.index("Environment") > shown.index(whole.sections[-1].tables[-1].title)


def test_a_wide_table_keeps_what_matters_on_a_page_of_latex_and_says_what_it_leaves_out() -> None:
    precisions = ("fp32", "tf32", "bf16")
    found: RunRecord[Any] = fixtures_timing.record(
        TimeSpec(size=("small",), ctx=(128, 256), precision=precisions, steps=(8,))
    )
    text = latex_text(assemble_document([ReportedRun("time", found)]), "files")
    assert "hidden columns: " in text
    assert r"speed-up" in text
