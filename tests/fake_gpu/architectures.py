"""Small models of transformers, whose kernels allocate what those of large ones do."""

from __future__ import annotations

from typing import Any

import transformers
from torch import nn
from transformers.initialization import no_init_weights


def _built(kind: str, config: str, **fields: Any) -> nn.Module:
    # transformers draws some weights until all are within bounds, which they never are on the fake GPU.
    with no_init_weights():
        model: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**fields))
    return model


def _decoder(vocab: int, groups: int, **fields: Any) -> dict[str, Any]:
    shape = {"hidden_size": 192, "intermediate_size": 520, "num_hidden_layers": 2, "num_attention_heads": 6}
    return {**shape, "num_key_value_heads": groups, "vocab_size": vocab, "use_cache": False, **fields}


def qwen(vocab: int = 1003, groups: int = 2) -> nn.Module:
    """Build a Qwen 2: biases in attention, grouped queries."""
    return _built("Qwen2ForCausalLM", "Qwen2Config", **_decoder(vocab, groups))


def gemma(vocab: int = 1003) -> nn.Module:
    """Build a Gemma 2: capped logits, heads wider than the model, sliding windows, tied embeddings."""
    return _built("Gemma2ForCausalLM", "Gemma2Config", **_decoder(vocab, 3, head_dim=40, sliding_window=32))


def mixtral(vocab: int = 1003) -> nn.Module:
    """Build a Mixtral with four experts."""
    return _built("MixtralForCausalLM", "MixtralConfig", **_decoder(vocab, 2, num_local_experts=4))


def neox(vocab: int = 1003) -> nn.Module:
    """Build a GPT-NeoX: attention and feed-forward beside each other, rotations of a quarter of each head."""
    return _built("GPTNeoXForCausalLM", "GPTNeoXConfig", **_decoder(vocab, 6))


def gpt(vocab: int = 1003) -> nn.Module:
    """Build a GPT-2 with its dropout."""
    return _built("GPT2LMHeadModel", "GPT2Config", vocab_size=vocab, n_embd=180, n_layer=2, n_head=6, use_cache=False)


def bert(vocab: int = 1003) -> nn.Module:
    """Build a BERT with dropout."""
    return _built("BertForMaskedLM", "BertConfig", **_decoder(vocab, 6))


def mamba(vocab: int = 1003) -> nn.Module:
    """Build a Mamba, whose scan is a loop over the context where its kernels are not installed."""
    fields = {"hidden_size": 72, "num_hidden_layers": 2, "state_size": 8, "vocab_size": vocab, "use_cache": False}
    return _built("MambaForCausalLM", "MambaConfig", **fields)


def t5(vocab: int = 1003, heads: int = 4) -> nn.Module:
    """Build a T5: a learned bias of relative positions, no scale of the scores."""
    fields: dict[str, Any] = {
        "d_model": 128,
        "d_kv": 24,
        "d_ff": 300,
        "num_layers": 2,
        "num_heads": heads,
        "vocab_size": vocab,
    }
    fields |= {"use_cache": False, "decoder_start_token_id": 0}
    return Seq2Seq(_built("T5ForConditionalGeneration", "T5Config", **fields))


class Seq2Seq(nn.Module):
    """An encoder and a decoder that read the same text."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any) -> Any:
        return self.model(input_ids=ids, labels=ids).loss


def vit(picture: int = 48) -> nn.Module:
    """Build a vision Transformer with patches of 8 pixels."""
    fields = {"hidden_size": 132, "intermediate_size": 500, "num_hidden_layers": 2, "num_attention_heads": 6}
    return _built("ViTForImageClassification", "ViTConfig", **fields, image_size=picture, patch_size=8, num_labels=11)


def convnext() -> nn.Module:
    """Build a ConvNeXt: convolutions of single channels, layer norms of channels last."""
    fields = {"hidden_sizes": [24, 44, 64, 96], "depths": [1, 1, 2, 1], "num_labels": 11}
    return _built("ConvNextForImageClassification", "ConvNextConfig", **fields)


def resnet() -> nn.Module:
    """Build a residual network with batch norms."""
    fields = {"embedding_size": 20, "hidden_sizes": [36, 60], "depths": [1, 2], "num_labels": 11}
    return _built("ResNetForImageClassification", "ResNetConfig", **fields)
