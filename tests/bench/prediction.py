"""Predicted against published: kernels where their tables are given, and every step that the model covers.

python -m tests.bench.prediction [--reference DIR] [--markdown]

DIR holds tables that are too large to be kept here: neusight_kernels, gemm_half and attention_half, each .csv.gz.
Errors are |ln(predicted / published)|. Steps are predicted with nothing measured on their machine; the host is the
typical one.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sysbench.predict.rates import HOST_RATES, GpuRate, GpuRates, HostRates, typical_host
from sysbench.predict.rates import gpu as rates_of
from sysbench.predict.step import Estimate, StepPrediction, predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.spec.grid import SIZES
from sysbench.spec.hardware import Rate, by_name
from sysbench.spec.model import ModelCell
from sysbench.spec.ranks import Strategy
from tests.bench import prediction_kernels as kernels
from tests.bench.fitting import Observation, TimedStep, fit_rates
from tests.bench.published_models import Shape, joined, traced, traced_rank, written_out_adamw
from tests.bench.published_sharded import (
    Run,
    Split,
    traced_micro_batch,
    traced_sharded_update,
    traced_split,
    traced_update,
)

PUBLISHED = Path(__file__).parent / "published"
FITTED_MODELS = frozenset({"bert_large", "opt_13"})
"""Of NeuSight's runs, those on which the spread of whole steps was chosen."""


class Row(NamedTuple):
    """A published time and its prediction, in seconds."""

    source: str
    name: str
    gpu: str
    published_s: float
    predicted: Estimate
    lower_bound_s: float
    fitted: bool
    draws_s: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        return float(np.log(self.predicted.point_s / self.published_s))

    @property
    def covered(self) -> bool:
        return self.predicted.low_s <= self.published_s <= self.predicted.high_s


@cache
def _traced(shape: Shape, training: bool, compiled: bool) -> Trace:
    return traced(shape, training=training, compiled=compiled)


def neusight(*, compiled: bool = False) -> Iterator[Row]:
    """Steps on one GPU: with nothing measured there, and with rates fitted to the first run of each of its modes."""
    of_gpu: dict[str, list[dict[str, str]]] = {}
    for row in published_rows("neusight_compiled.csv" if compiled else "neusight_core67.csv"):
        if row["gpu"] in kernels.SLUGS and not row["model"].startswith("switch"):
            of_gpu.setdefault(row["gpu"], []).append(row)
    source = "NeuSight, compiled" if compiled else "NeuSight"
    for name, rows in of_gpu.items():
        known = rates_of(kernels.SLUGS[name])
        measured = [] if compiled else list({row["mode"]: row for row in reversed(rows)}.values())
        timed = [TimedStep(_trace_of(row), _phases_s(row)) for row in measured]
        calibrated = _calibrated(known, timed) if timed else None
        for row in rows:
            title = f"{row['model']} {row['seq']} × {row['batch']} {row['mode']}{' compiled' if compiled else ''}"
            looked_at = compiled or row["model"] in FITTED_MODELS
            published_s = float(row["total_ms"]) / 1e3
            said = predict(_trace_of(row, compiled=compiled), known, typical_host())
            yield Row(
                source, title, known.hardware.slug, published_s, said.time, said.lower_bound_s, looked_at, said.draws_s
            )
            if calibrated is not None:
                said = predict(_trace_of(row), *calibrated)
                where = known.hardware.slug, published_s
                yield Row("NeuSight, calibrated", title, *where, said.time, said.lower_bound_s, row in measured)


def _trace_of(row: Mapping[str, str], *, compiled: bool = False) -> Trace:
    family = "bert" if "bert" in row["model"] else "opt" if "opt" in row["model"] else "gpt2"
    columns = ("layers", "hidden", "heads", "d_ff", "vocab", "seq", "batch")
    shape = Shape(family, *(int(row[name]) for name in columns))  # type: ignore[arg-type]
    return _traced(shape, row["mode"] == "training", compiled).with_phases(("forward", "backward"))


def _phases_s(row: Mapping[str, str]) -> dict[str, float]:
    columns = {"forward": "fw_ms", "backward": "bw_ms"}
    return {phase: float(row[column]) / 1e3 for phase, column in columns.items() if row[column]}


_SLUGS_OF_RANKS = {"a100_sxm_40": "a100-40gb", "h100_sxm_80": "h100"}


def neusight_ranks(wanted: Callable[[dict[str, str]], bool] = lambda row: True) -> Iterator[Row]:
    """Forward, loss and backward on four GPUs: data parallel, of which each has a quarter of the batch, and tensor
    parallel."""
    for row in filter(wanted, published_rows("neusight_ranks.csv")):
        strategy: Strategy = "tp" if row["variant"] == "tp4" else "ddp"
        sizes = [int(row[name]) for name in ("layers", "hidden", "heads", "d_ff", "vocab", "seq")]
        shape = Shape("gpt2", *sizes, int(row["batch"]) // (1 if strategy == "tp" else 4))
        gpu = rates_of(_SLUGS_OF_RANKS[row["gpu"]])
        said = predict(traced_rank(shape, strategy, 4), gpu, typical_host())
        name = f"{row['model']} {row['seq']} × {row['batch']} {row['variant']}"
        published_s = float(row["total_ms"]) / 1e3
        yield Row("NeuSight, 4 GPUs", name, gpu.hardware.slug, published_s, said.time, said.lower_bound_s, False)


_FOUNDRY_GPUS = {
    "a100_sxm_40": ("a100-40gb", "ib-200"), "a100_sxm_80": ("a100-80gb", "ib-200"), "h100_sxm_80": ("h100", "ib-400"),
}  # fmt: skip
"""GPUs of llm-foundry's runs, and a network: which one they had is not stated."""

TRITON_SHARE = 0.55
"""Of the rate of flash attention 2, that of the version in Triton which llm-foundry had: 1 / 1.3 to 1 / 2.5 on an A100
(Dao, "FlashAttention-2", 2023), of which this is the geometric mean."""

FITTED_SEQS = ("512", "4096", "16384")
"""Runs of mpt-3b on one node that a cluster is calibrated on; every cluster has them."""


def llm_foundry(wanted: Callable[[dict[str, str]], bool] = lambda row: True) -> Iterator[Row]:
    """Sharded steps on 8 to 512 GPUs: with nothing measured there, and with rates fitted to three runs."""
    of_gpu: dict[str, list[dict[str, str]]] = {}
    for row in published_rows("llm_foundry.csv"):
        of_gpu.setdefault(row["gpu"], []).append(row)
    for name, rows in of_gpu.items():
        slug, interconnect = _FOUNDRY_GPUS[name]
        known = replace(_slowed(rates_of(slug), ("attention_forward", "attention_backward")), interconnect=interconnect)
        measured = [row for row in rows if (row["model"], row["gpus"]) == ("mpt-3b", "8") and row["seq"] in FITTED_SEQS]
        gpu, _ = _calibrated(known, [TimedStep(*_micro_batch(row, known)) for row in measured])
        calibrated = gpu, typical_host()  # which hardly matters here
        for row in filter(wanted, rows):
            micro_batches, run = int(row["grad_accum"]), _sharded(row)
            title = f"{row['model']} {row['seq']} × {row['micro_batch']} × {micro_batches} on {row['gpus']}"
            title += ", checkpointed" if row["act_ckpt"] == "full" else ""
            for source, on in (("llm-foundry", (known, typical_host())), ("llm-foundry, calibrated", calibrated)):
                step, update = predict(traced_micro_batch(run), *on), predict(traced_update(run), *on)
                is_fitted = on is calibrated and row in measured
                said = _accumulated(micro_batches, step, update)
                yield Row(source, title, slug, float(row["step_s"]), *said, is_fitted)


def _slowed(gpu: GpuRates, names: Iterable[GpuRate]) -> GpuRates:
    rates = dict(gpu.rates)
    for name in names:
        rates[name] = rates[name].model_copy(update={"value": TRITON_SHARE * rates[name].value, "spread": 0.3})
    return replace(gpu, rates=rates)


def _sharded(row: dict[str, str]) -> Run:
    sizes = ("layers", "d_model", "heads", "d_ff", "vocab", "seq", "micro_batch", "gpus")
    whole_in_backward = row["sharding"] == "SHARD_GRAD_OP"
    return Run(*(int(row[name]) for name in sizes), row["act_ckpt"] == "full", not whole_in_backward)


def _micro_batch(row: dict[str, str], gpu: GpuRates) -> tuple[Trace, Mapping[str, float]]:
    """A micro-batch, and its share of the published step less the update, which is hardly a hundredth."""
    update_s = predict(traced_update(_sharded(row)), gpu, typical_host()).time.point_s
    return traced_micro_batch(_sharded(row)), {"step": (float(row["step_s"]) - update_s) / int(row["grad_accum"])}


def _calibrated(gpu: GpuRates, steps: Sequence[TimedStep]) -> tuple[GpuRates, HostRates]:
    """The rates of a GPU and a host, fitted to these steps."""
    shown = {each.rate: each for each in fit_rates(steps, gpu, typical_host()).observations}

    def seen(rates: Mapping[Any, Rate]) -> dict[Any, Rate]:
        return {name: _observed(rate, shown[name]) if name in shown else rate for name, rate in rates.items()}

    host = typical_host()
    return replace(gpu, rates=seen(gpu.rates)), replace(host, rates=seen(host.rates))


def _observed(rate: Rate, seen: Observation) -> Rate:
    samples_s = np.array(seen.samples_s)
    one_s, spread = float(np.median(samples_s)), float(np.std(np.log(samples_s), ddof=1))
    return rate.model_copy(update={"value": one_s if seen.rate in HOST_RATES else seen.work / one_s, "spread": spread})


def simumax(wanted: Callable[[dict[str, str]], bool] = lambda row: True) -> Iterator[Row]:
    """Steps of Megatron-LM on eight GPUs: tensor and sequence parallel, with a sharded optimizer."""
    for row in filter(wanted, published_rows("simumax.csv")):
        ranks, replicas = (int(row["sharding"].partition(name)[2].split()[0]) for name in ("tp", "dp"))
        sizes = [int(row[name]) for name in ("layers", "d_model", "heads", "kv_heads", "d_ff")]
        padded = -(-int(row["vocab"]) // (128 * ranks)) * 128 * ranks
        split = Split(*sizes, padded, int(row["seq"]), ranks, replicas)
        gpu, micro_batches = rates_of("b200"), int(row["grad_accum"])
        name = f"{row['model']}, {row['layers']} layers, tp{ranks} dp{replicas} × {micro_batches}"
        steps = (
            predict(traced_split(split), gpu, typical_host()),
            predict(traced_sharded_update(split), gpu, typical_host()),
        )
        yield Row("SimuMax", name, "b200", float(row["step_s"]), *_accumulated(micro_batches, *steps), False)


def _accumulated(micro_batches: int, step: StepPrediction, update: StepPrediction) -> tuple[Estimate, float]:
    """A step of micro-batches and one update, and its lower bound."""
    time = Estimate(*np.add(np.multiply(micro_batches, astuple(step.time)), astuple(update.time)))
    return time, micro_batches * step.lower_bound_s + update.lower_bound_s


def reports() -> Iterator[Row]:
    """Forward, and whole steps: see published/README.md for what shows that they include an optimizer.

    With nothing measured there, and with rates fitted to the forward of the smallest model at two contexts.
    """
    rows = published_rows("reports.csv")
    measured = [row for row in rows if row["size"] == "small" and row["ctx"] in ("128", "1024")]
    of_gpu = {row["gpu"]: rates_of(row["gpu"]) for row in rows}
    calibrated = {
        slug: _calibrated(
            gpu,
            [
                TimedStep(_reported(row).with_phases(("forward",)), {"forward": float(row["forward_ms"]) / 1e3})
                for row in measured
                if row["gpu"] == slug
            ],
        )
        for slug, gpu in of_gpu.items()
    }
    training = ("forward", "loss", "backward", "optimizer")
    for row in rows:
        gpu, whole = of_gpu[row["gpu"]], _reported(row)
        for phases, column in ((("forward",), "forward_ms"), (training, "step_ms")):
            name = f"{row['size']} {row['ctx']} × {row['batch']} {row['precision']} {' + '.join(phases)}"
            published_s = float(row[column]) / 1e3
            for source, on in (("report", (gpu, typical_host())), ("report, calibrated", calibrated[row["gpu"]])):
                said = predict(whole.with_phases(phases), *on)
                is_fitted = source == "report" or row in measured
                yield Row(source, name, row["gpu"], published_s, said.time, said.lower_bound_s, is_fitted, said.draws_s)


def _reported(row: Mapping[str, str]) -> Trace:
    cell = ModelCell(
        device="cuda", size=row["size"], model=SIZES[row["size"]], ctx=int(row["ctx"]), batch=int(row["batch"]),
        precision=row["precision"], attention="naive", execution="eager", optimizer="foreach", seed=0,
        mode="forward-backward",
    )  # fmt: skip
    return joined(trace(cell, Gpu.of(by_name(row["gpu"])))[0], written_out_adamw(cell.model))


def published_rows(name: str) -> list[dict[str, str]]:
    """The rows of a file of `published`."""
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(file))


_OF_SEVERAL = ("NeuSight, 4 GPUs", "SimuMax", "llm-foundry", "llm-foundry, calibrated")
_CALIBRATED = ("NeuSight, calibrated", "report, calibrated", "llm-foundry, calibrated")


def show_steps(rows: Iterable[Row], markdown: bool) -> None:
    rows = list(rows)
    head = ("run", "GPU", "published", "predicted", "90% interval", "error", "data sheet alone")
    # Two hundred runs of one kind, each predicted twice, are for the summary.
    show_table(head, (_described(row) for row in rows if row.source not in (*_OF_SEVERAL[2:], *_CALIBRATED)), markdown)
    halves: list[tuple[str, Callable[[Row], bool]]] = [
        ("NeuSight, looked at", lambda row: row.source == "NeuSight" and row.fitted),
        ("NeuSight, held out", lambda row: row.source == "NeuSight" and not row.fitted),
        ("NeuSight, compiled", lambda row: row.source == "NeuSight, compiled"),
        ("report, forward", lambda row: row.source == "report" and row.name.endswith("forward")),
        ("report, step", lambda row: row.source == "report" and row.name.endswith("optimizer")),
        ("all of one GPU", lambda row: row.source not in (*_OF_SEVERAL, *_CALIBRATED)),
        ("NeuSight, calibrated, others", lambda row: row.source == _CALIBRATED[0] and not row.fitted),
        ("report, calibrated, others", lambda row: row.source == _CALIBRATED[1] and not row.fitted),
        ("all of one GPU, calibrated, others", lambda row: row.source in _CALIBRATED[:2] and not row.fitted),
        ("NeuSight, 4 GPUs", lambda row: row.source == "NeuSight, 4 GPUs"),
        ("llm-foundry", lambda row: row.source == "llm-foundry"),
        ("llm-foundry, checkpointed", lambda row: row.source == "llm-foundry" and row.name.endswith("checkpointed")),
        ("llm-foundry, others", lambda row: row.source == "llm-foundry" and not row.name.endswith("checkpointed")),
        ("llm-foundry, calibrated, others", lambda row: row.source == "llm-foundry, calibrated" and not row.fitted),
        ("SimuMax", lambda row: row.source == "SimuMax"),
        ("all of several GPUs, nothing measured there", lambda row: row.source in _OF_SEVERAL[:3]),
    ]
    head = ("steps", "rows", "median", "p90", "in interval", "width", "roofline's median / ours")
    show_table(
        head, (_summarised(name, of) for name, belongs in halves if (of := list(filter(belongs, rows)))), markdown
    )


def show_ratios(rows: Iterable[Row], markdown: bool) -> None:
    """Ratios of two steps: how many published ones lie in the predicted interval, and how wide it is."""
    of_step: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.source == "NeuSight":
            of_step.setdefault(("the same step on two GPUs (NeuSight)", row.name), []).append(row)
        elif row.source == "report":
            without_precision = re.sub("fp32|bf16", "", row.name)
            of_step.setdefault(("two precisions on one GPU (report)", row.gpu, without_precision), []).append(row)
    pairs: dict[str, list[tuple[Row, Row]]] = {}
    for (kind, *_), alike in of_step.items():
        pairs.setdefault(kind, []).extend(combinations(alike, 2))
    head = ("ratio", "interval", "pairs", "in interval", "width", "faster one decided", "of them right")
    show_table(head, (line for kind, each in pairs.items() for line in _described_ratios(kind, each)), markdown)


def _described_ratios(kind: str, pairs: list[tuple[Row, Row]]) -> Iterator[tuple[str, ...]]:
    published = np.array([first.published_s / second.published_s for first, second in pairs])
    draw_by_draw = [np.quantile(np.divide(first.draws_s, second.draws_s), (0.05, 0.95)) for first, second in pairs]
    of_ends = [
        (first.predicted.low_s / second.predicted.high_s, first.predicted.high_s / second.predicted.low_s)
        for first, second in pairs
    ]
    for name, intervals in (("draw by draw", draw_by_draw), ("of the ends of both", of_ends)):
        low, high = np.transpose(intervals)
        decided, right = (low > 1) | (high < 1), (published > 1) == (low > 1)
        yield (
            kind, name, f"{len(pairs)}", f"{np.mean((low <= published) & (published <= high)):.0%}",
            f"× {np.median(high / low):.2f}", f"{np.mean(decided):.0%}", f"{np.mean(right[decided]):.0%}",
        )  # fmt: skip


def _described(row: Row) -> tuple[str, ...]:
    said, published_ms = row.predicted, 1e3 * row.published_s
    return (
        row.name,
        row.gpu,
        f"{published_ms:.1f} ms",
        f"{1e3 * said.point_s:.1f} ms",
        f"{1e3 * said.low_s:.1f} to {1e3 * said.high_s:.1f}{'' if row.covered else ' (missed)'}",
        f"{np.expm1(row.error):+.0%}",
        f"{1e3 * row.lower_bound_s / published_ms - 1:+.0%}",
    )


def _summarised(name: str, rows: list[Row]) -> tuple[str, ...]:
    errors = np.array([abs(row.error) for row in rows])
    roofline = np.median([abs(np.log(row.lower_bound_s / row.published_s)) for row in rows])
    width = np.median([row.predicted.high_s / row.predicted.low_s for row in rows])
    return (
        name,
        f"{len(rows)}",
        f"{np.median(errors):.1%}",
        f"{np.quantile(errors, 0.9):.1%}",
        f"{np.mean([row.covered for row in rows]):.0%}",
        f"× {width:.2f}",
        f"{roofline / np.median(errors):.1f}",
    )


def show_kernels(directory: Path, markdown: bool) -> None:
    measured = [*kernels.neusight(directory), *kernels.products(directory), *kernels.attention(directory)]
    lines = [
        (
            group.name, group.gpu, f"{len(group.fitted)}", f"{np.median(group.fitted):.1%}", f"{len(group.held_out)}",
            f"{np.median(group.held_out):.1%}", f"{np.quantile(group.held_out, 0.9):.1%}",
            f"{np.median(group.roofline) / np.median(group.held_out):.1f}", f"{group.covered:.0%}",
            f"× {group.width:.2f}",
        )
        for group in kernels.groups(measured)
    ]  # fmt: skip
    head = ("kernels", "GPU", "rows", "fitted median", "rows", "held-out median", "held-out p90")
    show_table((*head, "roofline's median / ours", "in interval", "width"), lines, markdown)


def show_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], markdown: bool) -> None:
    """Print a table, in Markdown or with aligned columns."""
    rows = list(rows)
    if markdown:
        lines = [head, ("---",) * len(head), *rows]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines), end="\n\n")
        return
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    for line in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="the directory of the tables of kernels")
    parser.add_argument("--markdown", action="store_true", help="as docs/prediction.md has it")
    options = parser.parse_args()
    if options.reference is not None:
        show_kernels(options.reference, options.markdown)
    rows = [*neusight(), *neusight(compiled=True), *neusight_ranks(), *llm_foundry(), *simumax(), *reports()]
    show_steps(rows, options.markdown)
    show_ratios(rows, options.markdown)


if __name__ == "__main__":
    main()
