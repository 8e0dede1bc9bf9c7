from __future__ import annotations

import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sysbench import package
from sysbench.errors import LogError, UsageError
from sysbench.simulate.gpu import Gpu
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware, by_name, by_slug, find, known, parse_gpus
from sysbench.spec.steps import Precision

GIB = 2**30
PROFILES = Path(__file__).parents[2] / "profiles" / "hardware"

REPORTED = {
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
    "Tesla V100-PCIE-16GB": "v100-pcie-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla V100S-PCIE-32GB": "v100s-32gb",
    "Tesla T4": "t4",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "NVIDIA A40": "a40",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 3060": "rtx-3060",
    "GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4070": "rtx-4070",
    "NVIDIA GeForce RTX 4080": "rtx-4080",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA B200": "b200",
    "NVIDIA A30": "a30",
    "NVIDIA RTX A5000": "rtx-a5000",
    "NVIDIA RTX A4000": "rtx-a4000",
    "NVIDIA L20": "l20",
    "NVIDIA H20": "h20",
    "NVIDIA GB200": "gb200",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB10": "gb10",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti",
    "GeForce RTX 2080 Ti": "rtx-2080-ti",
    "NVIDIA GeForce RTX 5070 Ti": "rtx-5070-ti",
    "NVIDIA GeForce RTX 5080": "rtx-5080",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "rtx-pro-6000-max-q",
    "Tesla P100-PCIE-16GB": "p100",
    "AMD Instinct MI210": "mi210",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI355X": "mi355x",
}

STRANGERS = [
    "",
    "NVIDIA",
    "NVIDIA A100",
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    "NVIDIA A10M",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA L40",
    "NVIDIA H100",
    "NVIDIA H100 64GB HBM2",
    "NVIDIA H200 NVL",
    "NVIDIA H800",
    "NVIDIA GeForce RTX 3060 Ti",
    "NVIDIA GeForce RTX 3060 Laptop GPU",
    "NVIDIA GeForce RTX 3080 Ti",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4060",
    "NVIDIA GeForce RTX 4070 SUPER",
    "NVIDIA GeForce RTX 4080 SUPER",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA RTX 6000",
    "Quadro RTX 6000",
    "Tesla T40",
    "NVIDIA H20-3e",
    "NVIDIA GB300",
    "NVIDIA GeForce RTX 2080",
    "NVIDIA GeForce RTX 5070",
    "Tesla P100-SXM2-16GB",
    "AMD Instinct MI250X",
    "AMD Instinct MI300A",
    "Apple M2",
]

BOARDS = {
    # Multiprocessors, boost clock in MHz, and FLOP per clock and multiprocessor for fp32, tf32 and 16 bits, from the
    # architecture white papers: what the data sheets' rates have to come down to. 0: no such unit.
    "v100-16gb": (80, 1530, 128, 0, 1024),
    "v100-pcie-32gb": (80, 1380, 128, 0, 1024),
    "t4": (40, 1590, 128, 0, 1024),
    "a10": (72, 1695, 256, 512, 1024),
    "a10g": (80, 1710, 256, 256, 512),
    "a40": (84, 1740, 256, 512, 1024),
    "a100-80gb": (108, 1410, 128, 1024, 2048),
    "l4": (58, 2040, 256, 512, 1024),
    "l40s": (142, 2520, 256, 512, 1024),
    "rtx-3060": (28, 1777, 256, 256, 512),
    "rtx-3080": (68, 1710, 256, 256, 512),
    "rtx-3080-12gb": (70, 1710, 256, 256, 512),
    "rtx-3090": (82, 1695, 256, 256, 512),
    "rtx-4060-ti": (34, 2535, 256, 256, 512),
    "rtx-4060-ti-16gb": (34, 2535, 256, 256, 512),
    "rtx-4070": (46, 2475, 256, 256, 512),
    "rtx-4080": (76, 2505, 256, 256, 512),
    "rtx-4090": (128, 2520, 256, 256, 512),
    "rtx-5090": (170, 2407, 256, 256, 512),
    "rtx-a6000": (84, 1800, 256, 512, 1024),
    "rtx-6000-ada": (142, 2505, 256, 512, 1024),
    "h100": (132, 1830, 256, 2048, 4096),
    "h100-pcie": (114, 1620, 256, 2048, 4096),
    "a30": (56, 1440, 128, 1024, 2048),
    "rtx-a5000": (64, 1695, 256, 512, 1024),
    "rtx-a4000": (48, 1560, 256, 512, 1024),
    "l20": (92, 2520, 256, 256, 512),
    "rtx-2080-ti": (68, 1545, 128, 0, 512),
    "p100": (56, 1303, 128, 0, 128),
    "rtx-5080": (84, 2617, 256, 256, 512),
    "rtx-5070-ti": (70, 2452, 256, 256, 512),
    "rtx-5060-ti": (36, 2572, 256, 256, 512),
    "rtx-5060-ti-16gb": (36, 2572, 256, 256, 512),
    "rtx-pro-6000": (188, 2617, 256, 512, 1024),
    "gb10": (48, 2525, 256, 512, 1024),
    # Compute units of AMD, whose matrix cores do sums in fp32 as well.
    "mi210": (104, 1700, 128, 0, 1024),
    "mi300x": (304, 2100, 256, 1024, 2048),
    "mi325x": (304, 2100, 256, 1024, 2048),
    "mi355x": (256, 2400, 256, 0, 4096),
}


def rate(name: str, precision: Precision) -> float | None:
    found = find(name)
    assert found is not None
    return found.peak_flops_per_s.get(precision)


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_profile_is_valid_and_says_where_its_rates_are_from(file: Path) -> None:
    profile = Hardware(slug=file.stem, **tomllib.loads(file.read_text()))
    assert profile == by_name(file.stem)
    assert profile.names
    assert profile.source
    peaks = profile.peak_flops_per_s
    assert "fp32" in peaks
    # Since tf32 exists, 16 bits are twice as fast, and bf16 as fast as fp16.
    assert profile.architecture is not None or ("tf32" in peaks) == ("bf16" in peaks)
    if "tf32" in peaks:
        assert peaks["bf16"] == peaks["fp16"] == pytest.approx(2 * peaks["tf32"], rel=0.03)
    assert profile.memory_bandwidth_bytes_per_s is not None
    for precision, ceiling in profile.measured.items():
        assert 0.5 < ceiling.matmul_flops_per_s / profile.peak_flops_per_s[precision] < 1


@pytest.mark.parametrize(("name", "slug"), REPORTED.items())
def test_a_reported_name_means_its_own_card_and_no_other(name: str, slug: str) -> None:
    found = find(name)
    assert found is not None
    assert found.slug == slug
    assert find(name.upper()) == found
    assert find(f" {name} ") == found


@pytest.mark.parametrize("name", STRANGERS)
def test_a_card_that_is_not_known_is_unknown_however_alike(name: str) -> None:
    assert find(name) is None


def test_no_two_profiles_answer_to_one_name_and_one_memory() -> None:
    for one in known():
        for name in one.names:
            assert find(name, one.memory_bytes) == one


def test_cards_that_share_a_name_are_told_apart_by_their_memory_or_not_at_all() -> None:
    name = "NVIDIA GeForce RTX 4060 Ti"
    assert find(name) is None
    small, large = find(name, 8 * GIB), find(name, 16 * GIB)
    assert small is not None
    assert large is not None
    assert (small.slug, large.slug) == ("rtx-4060-ti", "rtx-4060-ti-16gb")
    assert find("NVIDIA GeForce RTX 3060", 8 * GIB) is None  # another bus, under the name of the 12 GB card


def test_peaks_are_those_of_the_data_sheets() -> None:
    def tera(name: str, precision: Precision) -> int:
        return round((rate(name, precision) or 0) / 1e12)

    a100, h100, h200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200"
    assert [tera(name, "bf16") for name in (a100, h100, h200)] == [312, 989, 989]
    assert (rate(a100, "fp32"), rate(a100, "tf32")) == (19.5e12, 156e12)
    assert [tera(name, "fp32") for name in (h100, h200)] == [67, 67]
    bandwidths = [getattr(find(name), "memory_bandwidth_bytes_per_s", 0) / 1e12 for name in (a100, h100, h200)]
    assert bandwidths == pytest.approx([2.0, 3.35, 4.8], rel=0.02)
    assert [
        round(by_name(slug).measured["bf16"].matmul_flops_per_s / 1e12) for slug in ("a100-80gb", "h100", "h200")
    ] == [271, 794, 794]


@pytest.mark.parametrize("slug", BOARDS)
def test_peaks_are_what_the_multiprocessors_can_do(slug: str) -> None:
    """Dense rates and sums in fp32: a rate with sparsity, or with sums in fp16, would be twice as high."""
    multiprocessors, clock_mhz, *per_clock = BOARDS[slug]
    per_clock_of: dict[Precision, int] = {
        "fp32": per_clock[0],
        "tf32": per_clock[1],
        "bf16": per_clock[2] if per_clock[1] or by_name(slug).architecture else 0,
        "fp16": per_clock[2],
    }
    expected = {precision: multiprocessors * clock_mhz * 1e6 * flop for precision, flop in per_clock_of.items() if flop}
    assert dict(by_name(slug).peak_flops_per_s) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("slug", ["v100-16gb", "v100-32gb", "t4", "rtx-2080-ti", "p100"])
def test_a_card_without_bf16_units_has_no_bf16_rate(slug: str) -> None:
    peaks = by_name(slug).peak_flops_per_s
    assert "bf16" not in peaks
    assert "tf32" not in peaks
    assert "fp16" in peaks


def test_memory_is_what_cuda_reports_and_not_what_the_box_says() -> None:
    marketed = {"a100-80gb": 80, "h100": 80, "h200": 141, "t4": 16, "rtx-4090": 24, "b200": 180, "l40s": 48, "h20": 96}
    for slug, gigabytes in marketed.items():
        assert 0.9 * gigabytes < by_name(slug).memory_bytes / GIB < gigabytes


def test_a_known_context_is_an_interval_with_a_source_and_the_largest_is_counted() -> None:
    contexts = {slug: by_name(slug).context for slug in ("t4", "h100", "a100-80gb")}
    assert contexts["a100-80gb"] is None
    for slug, observed_mib in (("t4", 141), ("h100", 614)):
        context = contexts[slug]
        assert context is not None
        assert context.low_bytes <= observed_mib * 2**20 <= context.high_bytes
        assert Gpu.of(by_name(slug)).context_bytes == context.high_bytes
    assert Gpu.of(by_name("t4"), context_bytes=5).least_context_bytes == 5  # measured


def test_a_memory_size_stands_for_a_gpu_without_known_rates() -> None:
    card = by_name("24GiB")
    assert card.memory_bytes == 24 * GIB
    assert "fp32" not in card.peak_flops_per_s
    assert by_name("0.5 TiB").memory_bytes == 512 * GIB
    assert by_name("80gb").memory_bytes == 80_000_000_000


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("h10", "Did you mean h100"),
        ("rtx5090ti", "Did you mean rtx-"),
        ("a100", "full name .* Did you mean a100-80gb.*a100-40gb, a100-80gb, a100-pcie-40gb, a100-pcie-80gb"),
        ("v100 32gb pcie sxm", "v100-32gb"),
    ],
)
def test_a_mistyped_gpu_is_answered_with_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        by_name(wrong)


@pytest.mark.parametrize("wrong", ["", "GiB", "0GiB", "-24GiB", "24", "24 gallons", "nan GiB", "../h100"])
def test_what_is_neither_a_gpu_nor_a_size_is_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(UsageError) as refused:
        by_name(wrong)
    assert "\n" not in str(refused.value)
    assert "24GiB" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("h100-80gb", "h100"),
        ("H100 SXM", "h100"),
        ("h100-sxm5-80gb", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("h100 pcie", "h100-pcie"),
        ("H200-141GB", "h200"),
        ("a100 80GB", "a100-80gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("a100 pcie 40g", "a100-pcie-40gb"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("GeForce RTX 3080 12GB", "rtx-3080-12gb"),
        ("4060ti 16gb", "rtx-4060-ti-16gb"),
        ("a6000", "rtx-a6000"),
        ("v100s", "v100s-32gb"),
    ],
)
def test_people_call_a_gpu_by_many_names(name: str, slug: str) -> None:
    assert by_name(name).slug == slug
    assert parse_gpus(f"{name}, 24GiB,{slug}") == (slug, "24GiB")


@pytest.mark.parametrize("name", [name for name in STRANGERS if name and find(name) is None])
def test_a_stranger_is_not_taken_for_its_namesake(name: str) -> None:
    """An H100 by name alone is the SXM card; whatever else a name says has to be said of the card, too."""
    if name not in ("NVIDIA H100",):
        with pytest.raises(UsageError):
            by_name(name)


def test_a_slug_is_understood_in_any_case() -> None:
    assert by_name("A100-80GB") == by_name(" a100-80gb ") == find("NVIDIA A100-SXM4-80GB")


def test_profiles_are_found_in_an_installed_package_too(tmp_path: Path) -> None:
    """The wheel holds them inside the package."""
    inside = tmp_path / "sysbench" / "profiles" / "hardware"
    inside.mkdir(parents=True)
    assert package.profiles("hardware", tmp_path / "sysbench") == inside


def test_knowing_hardware_takes_nothing_heavy() -> None:
    program = "import sys; from sysbench.spec import hardware; hardware.known(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


OWN = """
title = "My card"
memory_bytes = 8_000_000_000

[rates.stream]
value = 5e11
spread = 0.02
source = "measured here"
basis = "calibrated"
"""


def test_a_device_of_the_users_own_is_found_and_comes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    directory = tmp_path / "sysbench" / "hardware"
    directory.mkdir(parents=True)
    (directory / "mine.toml").write_text(OWN)
    (directory / "t4.toml").write_text(OWN)
    assert by_name("mine").rates["stream"].value == 5e11
    assert by_name("T4").title == "My card"
    assert [by_slug(slug) for slug in ("mine", "t4")] == [by_name("mine"), by_name("t4")]
    assert [by_slug(slug) for slug in ("mien", "24GiB")] == [None, None]
    assert "t4" in {each.slug for each in known() if each.title != "My card"}
    with pytest.raises(UsageError, match="mine"):
        by_name("mien")


@pytest.mark.parametrize("text", ["title = ", 'title = "x"', 'slug = "other"\ntitle = "x"\nmemory_bytes = 1'])
def test_a_file_of_the_users_that_describes_no_device_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    directory = tmp_path / "sysbench" / "hardware"
    directory.mkdir(parents=True)
    (directory / "mine.toml").write_text(text)
    with pytest.raises(LogError, match=r"mine\.toml is not a valid device description"):
        by_name("mine")


def test_a_context_that_was_measured_here_is_counted_here_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    published = Gpu.of(by_name("t4"))
    file = hardware.contexts_file()
    file.parent.mkdir(parents=True)
    file.write_text(hardware.contexts_with("t4", 200 << 20, "a test"))
    measured = Gpu.of(by_name("t4"))
    assert (measured.least_context_bytes, measured.context_bytes) == (200 << 20, 220 << 20)
    assert Gpu.of(by_name("h100")) == Gpu.of(by_name("h100"), context_bytes=None)
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert Gpu.of(by_name("t4")) == published
    file.write_text(hardware.contexts_with("t4", 300 << 20, "a test"))
    assert Gpu.of(by_name("t4")).least_context_bytes == 300 << 20
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Gpu.of(by_name("t4")) == measured  # a home that machines share


@pytest.mark.parametrize("text", ["", "[]", '{"HERE": 1}', '{"HERE": {"t4": {"low_bytes": 0}}}', "{"])
def test_a_damaged_file_of_contexts_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    published = Gpu.of(by_name("t4"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    hardware.contexts_file().parent.mkdir(parents=True)
    hardware.contexts_file().write_text(text.replace("HERE", platform.node()))
    assert Gpu.of(by_name("t4")) == published
