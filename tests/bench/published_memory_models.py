"""Models as the scripts of published measurements build them; `tests.bench.measured_memory` simulates them as code."""

from __future__ import annotations

from torch import nn

from sysbench.lab.workload.own import build_from_config
from sysbench.spec.published import catalogued


def adapted(name: str, attention: str, dtype: str, rank: int) -> nn.Module:
    """LoRA by peft at the projections of attention, with checkpointing: scripts/measure.py of fitcheck-llm 0.3.1."""
    from peft import LoraConfig, get_peft_model

    published = catalogued(name)
    assert published is not None
    model = build_from_config(published.file, {"dtype": dtype}, "naive" if attention == "eager" else "sdpa")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = get_peft_model(model, LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM"))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()  # whose gradient lives as long as the logits
    return model
