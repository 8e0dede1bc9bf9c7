"""Offloading on a real GPU: the link is calibrated, and the prediction with its rates holds what is measured."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from sysbench import load
from tests.cli.running import sysbench

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def test_a_link_is_calibrated_and_an_offloaded_step_takes_what_is_predicted_with_it(tmp_path: Path) -> None:
    ran = sysbench("calibrate", "--budget", "20", "--out", "here.toml", "--host", "host.toml", cwd=tmp_path)
    assert ran.code == 0, ran.err
    rates = {name: rate["value"] for name, rate in tomllib.loads((tmp_path / "here.toml").read_text())["rates"].items()}
    assert 1e9 < rates["device_to_host"] < 1e12
    assert 1e9 < rates["host_to_device"] < 1e12
    step = ("time", "--size", "small", "--ctx", "512", "--bf16", "--offload", "optimizer", "--optimizer", "fused")
    measured = sysbench(*step, "--steps", "5", "--json", "measured.json", cwd=tmp_path)
    assert measured.code == 0, measured.err
    link = f"{min(rates['device_to_host'], rates['host_to_device']) / 1e9:.1f}GB/s"
    predicting = ("--simulate", "h100", "--host", "host.toml", "--host-link", link, "--json", "predicted.json")
    predicted = sysbench(*step, *predicting, cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    (seen,), (said,) = (load(tmp_path / name).cells for name in ("measured.json", "predicted.json"))
    update = next(each for each in said.prediction.phases if each.name == "optimizer")
    assert update.point_s == pytest.approx(seen.phases["optimizer"].wall.median_s, rel=0.5)
