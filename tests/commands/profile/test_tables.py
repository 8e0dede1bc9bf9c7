"""Output of a profile: of a GPU's step made by hand, whose every number is known."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from sysbench.commands.profile import flame as profile_flame
from sysbench.commands.profile import tables as profile_tables
from sysbench.errors import UsageError
from sysbench.render import output as summary
from sysbench.render.table import Measure, Table
from sysbench.spec.run import Format, Selection
from sysbench.trace.recording import Trace
from sysbench.trace.summarise import summarise
from sysbench.trace.summary import PHASES, ProfileSummary
from tests.trace.synthetic_traces import ADD, GEMM, MAIN, Builder, recording, training

STEPS, LAYERS, KERNEL_NS = 2, 3, 1000
HOSTILE = [
    "[bold red]evil[/] [link=file:///etc]x[/link]",
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "</script></style>\"'&amp;{{title}}",
    "\x1b[2J\x1b]0;title\x07 bell",
    "line\nbreak\ttab\r",
    "k" * 10_000,
    "a<" * 5_000,
    "$\\input{/etc/passwd}_%#&",
    "=cmd|' /C calc'!A0,\"quoted\"",
    "|pipe|`code`",
    "\ud800 lone surrogate",
]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return training(STEPS, LAYERS, kernel_ns=KERNEL_NS).trace(devices=("NVIDIA H100 80GB HBM3",))


@pytest.fixture(scope="module")
def profile(trace: Trace) -> ProfileSummary:
    return summarise(recording(trace))


def table(profile: ProfileSummary, name: str, selection: Selection | None = None) -> Table:
    (found,) = profile_tables.traces_sheet([profile], [name], selection).tables
    return found


def rows(found: Table) -> list[dict[str, object]]:
    """Cells by the keys of their columns; numbers as they are."""
    keys = [column.key for column in found.columns]
    return [
        dict(zip(keys, (cell.value if isinstance(cell, Measure) else cell for cell in row), strict=True))
        for row in found.rows
    ]


def printed(sheet: object, form: Format) -> str:
    file = io.StringIO()
    assert isinstance(sheet, summary.Sheet)
    summary.show_sheet(sheet, Console(file=file, width=100, force_terminal=form == "terminal"), form)
    return file.getvalue()


# --- tables


def test_calls_and_times_are_per_step(profile: ProfileSummary) -> None:
    first = rows(table(profile, "kernels"))[0]
    assert first["kernel"] == GEMM
    products = 3 * (9 * LAYERS + 1)
    assert first["calls"] == products
    assert first["total"] == pytest.approx(products * KERNEL_NS * 1e-9)
    assert [first[name] for name in ("avg", "med", "min", "max")] == pytest.approx([KERNEL_NS * 1e-9] * 4)


def test_a_range_shows_what_it_launched_and_no_other(profile: ProfileSummary) -> None:
    for asked, products in (
        ("forward", 9 * LAYERS + 1),
        ("backward", 2 * (9 * LAYERS + 1)),
        ("layers.1.attention", 3 * 6),
        ("forward/layers.1.attention", 6),
        ("layers.*.attention", 3 * 6 * LAYERS),
        ("backward/scores", 2 * LAYERS),
    ):
        found = rows(table(profile, "kernels", Selection(range=asked)))
        assert [row["calls"] for row in found if row["kernel"] == GEMM] == [products], asked


def test_a_pattern_looks_at_whole_names_and_the_rest_is_one_row(profile: ProfileSummary) -> None:
    found = rows(table(profile, "kernels", Selection(kernel=re.compile("sgemm|softmax_warp"))))
    assert [row["kernel"] for row in found] == [GEMM, "softmax_warp_forward<float>"]
    first, rest = rows(table(profile, "kernels", Selection(top=1)))
    assert (first["kernel"], rest["kernel"]) == (GEMM, "3 others")
    everything = sum(float(str(row["time"])) for row in (first, rest))
    assert everything == pytest.approx(1)


def test_rows_are_sorted_by_what_was_asked_for(profile: ProfileSummary) -> None:
    names = [str(row["kernel"]) for row in rows(table(profile, "kernels", Selection(sort="name")))]
    assert names == sorted(names, key=str.casefold)
    calls = [row["calls"] for row in rows(table(profile, "kernels", Selection(sort="calls")))]
    assert calls == sorted(calls, key=lambda count: -float(str(count)))


def test_the_tree_adds_up_in_both_directions(profile: ProfileSummary) -> None:
    found = rows(table(profile, "tree"))
    by_name = {str(row["module"]).strip(): row for row in found}
    everything = by_name["everything"]
    for row in found:
        phases = [float(str(row[name])) for name in ("forward", "backward", "optimizer") if name in row]
        assert sum(phases) == pytest.approx(float(str(row["total"])))
    parts = [float(str(by_name[name]["total"])) for name in ("layers.*", "lm_head", "outside modules")]
    assert sum(parts) == pytest.approx(float(str(everything["total"])))
    assert float(str(by_name["outside modules"]["backward"])) == 0


def test_the_tree_of_a_range_has_the_phases_that_are_in_it_and_says_what_it_is_of(profile: ProfileSummary) -> None:
    whole, part = (table(profile, "tree", Selection(range=asked)) for asked in (None, "backward"))
    phases = [[column.key for column in found.columns if column.key in PHASES] for found in (whole, part)]
    assert phases == [["forward", "backward", "optimizer"], ["backward"]]
    assert part.title == "where the time in backward goes"
    both = table(profile, "tree", Selection(range="forward", kernel=re.compile("softmax")))
    assert both.title == "where the time of kernels with softmax in forward goes"


@pytest.mark.parametrize("name", ["kernels", "tree", None])
def test_a_pattern_that_no_name_has_is_an_error_and_not_a_table_of_zeros(
    profile: ProfileSummary, name: str | None
) -> None:
    for selection, where in (
        (Selection(kernel=re.compile("gemn")), "no kernel"),
        (Selection("optimizer", re.compile("softmax_warp")), "no kernel in optimizer"),
    ):
        with pytest.raises(UsageError, match=f"^--kernel .* matches {where}$"):
            profile_tables.traces_sheet([profile], [name] if name else [], selection)


def test_a_range_of_several_profiles_is_shown_of_each(profile: ProfileSummary) -> None:
    sheet = profile_tables.traces_sheet([profile, profile], (), Selection("forward"))
    kernels, _ = sheet.tables
    assert kernels.title == "kernels launched in forward"
    assert [row["calls"] for row in rows(kernels) if row["kernel"] == GEMM] == [9 * LAYERS + 1] * 2


def test_shares_of_classes_are_of_forward_then_with_backward_then_of_the_whole_step(profile: ProfileSummary) -> None:
    matmul = rows(table(profile, "classes"))[0]
    kernels = 10 * LAYERS + LAYERS + 1  # forward has 9 products, a softmax and an addition in each layer
    assert [column.group for column in table(profile, "classes").columns if column.group] == [
        *["forward"] * 2,
        *["forward + backward"] * 2,
        *["full step"] * 2,
    ]
    products = 9 * LAYERS + 1
    shares = [cell.value for cell in table(profile, "classes").rows[0] if isinstance(cell, Measure)][::2]
    both = kernels + 2 * products + 2 * LAYERS
    assert shares == pytest.approx([products / kernels, 3 * products / both, 3 * products / (both + 1)])
    assert "matmul" in matmul.values()


def test_where_only_forward_is_marked_the_classes_are_those_of_the_whole_recording_too() -> None:
    built = training(1, 1, operators=False, kernel_ns=KERNEL_NS)
    built.ranges = [each for each in built.ranges if each[2] not in map(built.name, ("backward", "optimizer", "step"))]
    found = summarise(recording(built.trace()))
    everything = rows(table(found, "classes"))[-1]
    assert everything["all_time"] == pytest.approx(sum(found.spent.total_ns) * 1e-9)
    assert everything["all_time"] > 2 * everything["forward_time"]  # type: ignore[operator]


def test_softmax_that_is_written_out_is_said_to_be_in_other_classes(profile: ProfileSummary) -> None:
    assert not table(profile, "classes").notes  # it has a kernel of its own there
    names = [
        name.model_copy(update={"kernel_class": "elementwise"}) if name.kernel_class == "softmax" else name
        for name in profile.names
    ]
    (note,) = table(profile.model_copy(update={"names": names}), "classes").notes
    assert note.startswith("softmax within attention has no kernel of its own and counts as other classes;")


def test_what_the_class_other_is_made_of_is_said_when_it_is_large(profile: ProfileSummary) -> None:
    names = [name.model_copy(update={"kernel_class": "other"}) if name.name == GEMM else name for name in profile.names]
    assert not any(note.startswith("in other") for note in table(profile, "classes").notes)
    note = table(profile.model_copy(update={"names": names}), "classes").notes[0]
    assert note == f"in other, as shares of all kernel time: {GEMM} 87%"


def test_the_kernel_table_names_the_classes_that_the_table_of_classes_counts() -> None:
    built = training(1, 1, kernel_ns=KERNEL_NS)
    (begin,) = (start for start, _, name, _ in built.ranges if name == built.name("optimizer"))
    for number, name in enumerate((ADD, "void at::native::vectorized_elementwise_kernel<4, LerpFunctor>(int)"), 900):
        built.launch(begin + 1, number)
        built.kernel(name, begin + 10, KERNEL_NS, number)
    profile = summarise(recording(built.trace()))
    kinds = {row["kernel"]: row["class"] for row in rows(table(profile, "kernels"))}
    assert kinds["vectorized_elementwise_kernel<CUDAFunctor_add<float>>"] == "elementwise, optimizer"
    assert kinds["vectorized_elementwise_kernel<LerpFunctor>"] == "optimizer"
    counted = {row["class"]: row["step_time"] for row in rows(table(profile, "classes"))}
    # Adam's kernel, and the two that work elementwise within the optimizer; forward and backward of the residual sum.
    assert counted["optimizer"] == pytest.approx(3 * KERNEL_NS * 1e-9)
    assert counted["elementwise"] == pytest.approx(2 * KERNEL_NS * 1e-9)


def test_a_table_that_this_profile_cannot_fill_says_what_it_needs(profile: ProfileSummary) -> None:
    for name, needed in (("operator-shapes", "--shapes"), ("communication", "--ranks")):
        with pytest.raises(UsageError, match=needed):
            table(profile, name)


def test_softmax_against_the_matmuls_is_said_in_words(profile: ProfileSummary) -> None:
    sheet = profile_tables.traces_sheet([profile])
    (remark,) = (remark.text for remark in sheet.remarks if "forward" in remark.text)
    assert remark == "In attention's forward, softmax takes 33% of the time, and the two matrix products 67%."


# --- names that mean harm


@pytest.fixture(scope="module")
def hostile() -> ProfileSummary:
    built = Builder()
    built.range("step", 0, 100_000)
    for number, name in enumerate(HOSTILE):
        built.range(name, 1000 * number, 900)
        built.operator(name, 1000 * number + 100, 500, MAIN)
        built.launch(1000 * number + 200, number)
        built.kernel(name, 1000 * number + 300, 700, number)
    return summarise(recording(built.trace()))


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex"])
def test_names_are_text_in_every_format_and_no_markup(hostile: ProfileSummary, form: Format) -> None:
    sheet = profile_tables.traces_sheet([hostile], ["kernels", "tree", "operators"])
    text = printed(sheet, form)
    assert text
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    assert "\\input{" not in text or form != "latex"
    if form == "terminal":
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert "[bold red]" in plain
        assert max(map(len, plain.splitlines())) <= 100


def test_a_page_holds_names_as_data_only(hostile: ProfileSummary, tmp_path: Path) -> None:
    path = tmp_path / "f.html"
    profile_flame.write(path, hostile, HOSTILE[1])
    text = path.read_text()
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script")
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
