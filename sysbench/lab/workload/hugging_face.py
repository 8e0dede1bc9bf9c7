"""Models of Hugging Face's package transformers, built from a config file: offline, and without trained weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sysbench.errors import UnavailableError, nearest
from sysbench.lab.workload.imports import users
from sysbench.spec.model import Attention

_IMPLEMENTATIONS: Mapping[Attention, str] = {
    "naive": "eager",
    "sdpa": "sdpa",
    "flash": "sdpa",
    "efficient": "sdpa",
    "cudnn": "sdpa",
    "math": "sdpa",
    "flex": "flex_attention",
}
"""Names of attention implementations in transformers; the kernel of `sdpa` is chosen where it is called."""

DTYPE = "dtype"


def built(path: Path, fields: Mapping[str, Any], attention: Attention) -> nn.Module:
    """Build the model of a config on torch's default device, with `fields` of the config replaced.

    Parameters are fp32, whatever the config says of trained weights, unless `fields` has a `dtype`; the cache for
    generating text is off. Raises UnavailableError for an unknown field or model, or if transformers is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError:
        raise UnavailableError("--model hf:… needs the package transformers: pip install 'sysbench[hf]'") from None
    with users(f"reading {path}"):
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    for name, value in fields.items():
        if name == DTYPE:
            continue
        if not hasattr(config, name):
            meant = nearest(name, config.to_dict())
            question = f" Did you mean {meant}?" if meant else ""
            raise UnavailableError(f"--model-arg {name}: the config has no such field.{question}")
        setattr(config, name, value)
    config.use_cache = fields.get("use_cache", False)
    dtype = getattr(torch, str(fields.get(DTYPE, "float32")), None)
    if not isinstance(dtype, torch.dtype):
        raise UnavailableError(f"--model-arg dtype={fields[DTYPE]}: allowed are float32, bfloat16 and float16")
    options: dict[str, Any] = {DTYPE: dtype}
    if attention != "own":
        options["attn_implementation"] = _IMPLEMENTATIONS[attention]
    named = (config.architectures or [None])[0]
    with users(f"building {named or config.model_type}"):
        if named is not None and hasattr(transformers, named):
            model: nn.Module = getattr(transformers, named)._from_config(config, **options)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, **options)
    return model
