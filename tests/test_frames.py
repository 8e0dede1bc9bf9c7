"""Whose file it is, on this machine and in recordings of others."""

import json
from pathlib import Path

import pytest
import torch

import sysbench
from sysbench.frames import PYTHON, owner, owner_here

CLONE = "/home/me/a folder/sysbench"
TOOL = "/home/me/.local/share/uv/tools/sysbench/lib/python3.12/site-packages"
WINDOWS = r"C:\Users\me\sysbench\.venv\Lib\site-packages"


@pytest.mark.parametrize(
    ("filename", "package", "path"),
    [
        (f"{CLONE}/.venv/lib/python3.11/site-packages/torch/optim/adam.py", "torch", "torch/optim/adam.py"),
        (f"{CLONE}/sysbench/lab/step.py", "sysbench", "sysbench/lab/step.py"),
        (f"{TOOL}/sysbench/lab/step.py", "sysbench", "sysbench/lab/step.py"),
        (f"{TOOL}/torch/of_a_later_version.py", "torch", "torch/of_a_later_version.py"),
        (f"{TOOL}/torchvision/ops/boxes.py", "torchvision", "torchvision/ops/boxes.py"),
        (f"{TOOL}/six.py", "six", "six.py"),
        (f"{WINDOWS}\\torch\\nn\\modules\\module.py", "torch", "torch/nn/modules/module.py"),
        (r"C:\Python312\Lib\json\decoder.py", PYTHON, "json/decoder.py"),
        ("/usr/lib/python3/dist-packages/numpy/linalg.py", "numpy", "numpy/linalg.py"),
        ("/opt/python/3.13/lib/python3.13t/of_a_later_version.py", PYTHON, "of_a_later_version.py"),
        ("<frozen runpy>", PYTHON, "<frozen runpy>"),
        ("/opt/pytorch/torch/nn/functional.py", "torch", "torch/nn/functional.py"),
        (f"{CLONE}/train.py", None, None),
        (f"{CLONE}/tests/lab/step.py", None, None),
        ("/home/me/torch/train.py", None, None),
        ("/home/me/torchvision/train.py", None, None),
        ("/home/me/lib/python/train.py", None, None),
        (r"D:\work\Lib\train.py", None, None),
        ("<string>", None, None),
        ("??", None, None),
        ("", None, None),
        ("/x/site-packages", None, None),
        ("/x/torch/" + "\0" + "y" * 5000 + ".py", None, None),
    ],
)  # fmt: skip
def test_a_recorded_file_belongs_to_the_package_whose_folder_it_is_in(
    filename: str, package: str | None, path: str | None
) -> None:
    file = owner(filename)
    assert file.package == package
    assert file.is_library == (package not in (None, "sysbench"))
    if path is not None:
        assert "/".join(file.path) == path


def test_code_that_runs_here_is_judged_by_where_packages_are() -> None:
    files = {sysbench.__file__: "sysbench", torch.nn.functional.__file__: "torch", json.__file__: PYTHON}
    files |= {pytest.__file__: "pytest", __file__: None, "/home/me/torch/nn/functional.py": None}
    assert {file: owner_here(file).package for file in files} == files
    functional = owner_here(torch.nn.functional.__file__)
    assert functional.is_in("torch", "nn")
    assert functional.is_in("torch", "nn", "functional.py")
    assert not functional.is_in("torch", "n")
    assert not owner_here(str(Path("/home/me/torch/optim/lion.py"))).is_in("torch", "optim")
