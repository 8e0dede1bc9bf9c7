"""Sheets about published models: a list of all, or the config of one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sysbench import units
from sysbench.render.table import Cell, Column, Measure, Sheet, Table
from sysbench.spec.published import PublishedModel

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers"),
    "width": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "vocab": ("vocab_size",),
    "ctx": ("max_position_embeddings", "n_positions", "max_target_positions"),
}
"""What architectures call their dimensions; of an encoder and a decoder, those of the encoder."""


def model_list(models: Sequence[PublishedModel]) -> Sheet:
    columns = (
        Column("model", "model"),
        Column("parameters", "parameters", "number"),
        Column("layers", "layers", "number", importance=1),
        Column("width", "width", "number", importance=1),
        Column("heads", "heads", "number", importance=2),
        Column("kv_heads", "KV heads", "number", importance=3),
        Column("vocab", "vocabulary", "number", importance=2),
        Column("ctx", "longest ctx", "number", importance=1),
        Column("repository", "on the hub", importance=4, elastic=True),
        Column("source", "dimensions from", importance=5, elastic=True),
    )
    notes = (
        "sysbench models NAME shows the config; other models of the hub: --model hf:ORGANISATION/NAME",
        "width, layers and heads of a model with an encoder and a decoder: the encoder's",
    )
    rows = tuple(_row(model) for model in models)
    return Sheet((f"{len(models)} published models",), (Table("models", "names for --model", columns, rows, 1, notes),))


def _row(model: PublishedModel) -> tuple[Cell, ...]:
    found = (next((model.config[name] for name in names if name in model.config), None) for names in _NAMES.values())
    return (
        model.slug,
        Measure(model.parameters, text=units.quantity("count", model.parameters)),
        *(None if value is None else Measure(value, text=str(value)) for value in found),
        model.repositories[0],
        model.source,
    )


def model(published: PublishedModel) -> Sheet:
    columns = (Column("field", "field"), Column("value", "value", elastic=True))
    fields = {name: value for name, value in published.config.items() if not name.startswith("_")}
    rows = tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in fields.items())
    notes = (
        f"of {', '.join(published.repositories)}",
        f"from {published.source}; without fields that change neither memory nor time",
    )
    title = (published.slug, f"{published.parameters:,} parameters")
    return Sheet(title, (Table("config", "config, whose fields --model-arg overrides", columns, rows, 1, notes),))
