"""Public examples of trainers, where they lie beside the clone: each is read, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.check import file as files
from sysbench.commands.check.readers import format_of
from sysbench.commands.check.understanding import CannotTellError, Settings, Understanding, account
from sysbench.errors import UsageError

CONFIGS = Path(__file__).parents[4] / "shared" / "reference" / "configs"
EXAMPLES = sorted(path for path in CONFIGS.rglob("*") if path.suffix in files.SUFFIXES)

NO_CONFIG_OF_A_TRAINER = ("tokens_cfg.yaml", "baseten.yaml")
"""A vocabulary, and a contract with a cloud."""


@pytest.mark.skipif(not EXAMPLES, reason="no public configs beside the clone")
def test_no_key_of_public_configs_is_unknown() -> None:
    unknown: list[str] = []
    refused: dict[str, str] = {}
    for path in EXAMPLES:
        understanding = Understanding()
        try:
            file = files.read(path)
            form, settings = format_of(file), Settings(file)
        except UsageError:
            assert path.name in NO_CONFIG_OF_A_TRAINER
            continue
        try:
            form.read(settings, understanding)
        except CannotTellError as error:
            refused[path.name] = error.refusal.reason
            continue
        account(form, settings, understanding)
        unknown += [f"{path.name}, line {each.line}: {each.key}" for each in understanding.unknown]
        if not form.launches:
            assert {"batch", "grad_accum", "ctx", "precision", "optimizer"} <= understanding.options.keys()
            assert not {"model", "d_model"}.isdisjoint(understanding.options)
    assert not unknown
    assert all(refused.values())
    assert len(refused) < len(EXAMPLES) / 6
