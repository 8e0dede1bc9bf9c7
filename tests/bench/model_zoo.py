"""Models that nobody here wrote, and some as people write them by hand, each built without trained weights.

A function is imported only in a worker, and imports its package itself. Sizes are those that people train, with fewer
layers where every layer is alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# --- transformers


def _transformers(architecture: str, config: str, **fields: Any) -> nn.Module:
    """Build a model as its users do, with everything that the config leaves at its default: the cache is on."""
    import transformers

    model: nn.Module = getattr(transformers, architecture)(getattr(transformers, config)(**fields))
    return model


_DECODER = {"num_hidden_layers": 4, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
_GROUPED = {**_DECODER, "num_key_value_heads": 4}
_EXPERTS = {**_GROUPED, "moe_intermediate_size": 512, "num_experts_per_tok": 2}


def gpt2() -> nn.Module:
    return _transformers("GPT2LMHeadModel", "GPT2Config", n_layer=4)


def gpt2_classifier() -> nn.Module:
    return _transformers("GPT2ForSequenceClassification", "GPT2Config", n_layer=4, pad_token_id=50256)


def llama() -> nn.Module:
    return _transformers("LlamaForCausalLM", "LlamaConfig", **_GROUPED)


def mistral() -> nn.Module:
    return _transformers("MistralForCausalLM", "MistralConfig", **_GROUPED, sliding_window=256)


def qwen3() -> nn.Module:
    return _transformers("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, head_dim=64)


def gemma3() -> nn.Module:
    return _transformers("Gemma3ForCausalLM", "Gemma3TextConfig", **_GROUPED, head_dim=64)


def phi3() -> nn.Module:
    return _transformers("Phi3ForCausalLM", "Phi3Config", **_GROUPED, pad_token_id=0)


def falcon() -> nn.Module:
    return _transformers(
        "FalconForCausalLM", "FalconConfig", num_hidden_layers=4, hidden_size=1024, num_attention_heads=16
    )


def bloom() -> nn.Module:
    return _transformers("BloomForCausalLM", "BloomConfig", n_layer=4, hidden_size=1024, n_head=16)


def opt() -> nn.Module:
    return _transformers("OPTForCausalLM", "OPTConfig", num_hidden_layers=4)


def mamba() -> nn.Module:
    return _transformers("MambaForCausalLM", "MambaConfig", num_hidden_layers=2, hidden_size=768)


def mixtral() -> nn.Module:
    return _transformers("MixtralForCausalLM", "MixtralConfig", **_GROUPED, num_local_experts=8)


def qwen3_moe() -> nn.Module:
    return _transformers("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **_EXPERTS, num_experts=16, head_dim=64)


def olmoe() -> nn.Module:
    return _transformers("OlmoeForCausalLM", "OlmoeConfig", **_GROUPED, num_experts=16, num_experts_per_tok=2)


def bert() -> nn.Module:
    return _transformers("BertForMaskedLM", "BertConfig", num_hidden_layers=4)


def roberta_classifier() -> nn.Module:
    return _transformers("RobertaForSequenceClassification", "RobertaConfig", num_hidden_layers=4)


def modernbert() -> nn.Module:
    return _transformers("ModernBertForMaskedLM", "ModernBertConfig", num_hidden_layers=4)


def deberta() -> nn.Module:
    return _transformers(
        "DebertaV2ForMaskedLM", "DebertaV2Config", num_hidden_layers=2, relative_attention=True, pos_att_type=["c2p"]
    )


def deberta_v1() -> nn.Module:
    return _transformers(
        "DebertaForMaskedLM",
        "DebertaConfig",
        num_hidden_layers=2,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=512,
    )


def t5() -> nn.Module:
    return _transformers("T5ForConditionalGeneration", "T5Config", num_layers=4, decoder_start_token_id=0)


def bart() -> nn.Module:
    return _transformers("BartForConditionalGeneration", "BartConfig", encoder_layers=2, decoder_layers=2)


def whisper() -> nn.Module:
    return _transformers(
        "WhisperForConditionalGeneration", "WhisperConfig", encoder_layers=2, decoder_layers=2, d_model=384
    )


def wav2vec2() -> nn.Module:
    return _transformers("Wav2Vec2ForCTC", "Wav2Vec2Config", num_hidden_layers=2)


def clip() -> nn.Module:
    return _transformers("CLIPModel", "CLIPConfig")


def vit() -> nn.Module:
    return _transformers("ViTForImageClassification", "ViTConfig", num_hidden_layers=4)


def segformer() -> nn.Module:
    return _transformers("SegformerForSemanticSegmentation", "SegformerConfig")


# --- timm, torchvision


def _timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False)
    return model


def _torchvision(name: str) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None)
    return model


def timm_resnet() -> nn.Module:
    return _timm("resnet50")


def timm_convnext() -> nn.Module:
    return _timm("convnext_tiny")


def timm_vit() -> nn.Module:
    return _timm("vit_small_patch16_224")


def timm_swin() -> nn.Module:
    return _timm("swin_tiny_patch4_window7_224")


def timm_efficientnet() -> nn.Module:
    return _timm("efficientnet_b0")


def timm_mixer() -> nn.Module:
    return _timm("mixer_s16_224")


def torchvision_resnet() -> nn.Module:
    return _torchvision("resnet18")


def torchvision_vit() -> nn.Module:
    return _torchvision("vit_b_16")


def torchvision_densenet() -> nn.Module:
    return _torchvision("densenet121")


def torchvision_mobilenet() -> nn.Module:
    return _torchvision("mobilenet_v3_small")


def torchvision_deeplab() -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model("deeplabv3_mobilenet_v3_large", weights=None, weights_backbone=None)
    return model


def torchvision_video() -> nn.Module:
    return _torchvision("r3d_18")


# --- diffusers, peft


def unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    model: nn.Module = UNet2DConditionModel(sample_size=32, cross_attention_dim=768)
    return model


def dit() -> nn.Module:
    from diffusers import DiTTransformer2DModel

    model: nn.Module = DiTTransformer2DModel(num_layers=4, num_attention_heads=16, attention_head_dim=72)
    return model


def vae() -> nn.Module:
    from diffusers import AutoencoderKL

    model: nn.Module = AutoencoderKL(block_out_channels=(64, 128), down_block_types=("DownEncoderBlock2D",) * 2,
                                     up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip
    return model


def _peft(model: nn.Module, config: str, **fields: Any) -> nn.Module:
    import peft

    adapted: nn.Module = peft.get_peft_model(model, getattr(peft, config)(task_type="CAUSAL_LM", **fields))
    return adapted


def lora_llama() -> nn.Module:
    return _peft(llama(), "LoraConfig", r=8, target_modules=["q_proj", "v_proj"])


def lora_gpt2() -> nn.Module:
    return _peft(gpt2(), "LoraConfig", r=8, fan_in_fan_out=True)


def ia3_opt() -> nn.Module:
    return _peft(opt(), "IA3Config")


def prefix_gpt2() -> nn.Module:
    return _peft(gpt2(), "PrefixTuningConfig", num_virtual_tokens=16)


# --- written by hand


class KeepsLoss(nn.Module):
    """A language model in the manner of llama2.c: the loss is an attribute, and only the logits are returned."""

    def __init__(self, vocab: int = 32000, width: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab, bias=False)
        self.last_loss: Tensor | None = None

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.layers(self.embedding(tokens))
        if targets is None:
            self.last_loss = None
            logits: Tensor = self.head(x[:, [-1]])
        else:
            logits = self.head(x)
            self.last_loss = functional.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
        return logits


class Recurrent(nn.Module):
    """A language model of LSTMs."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, both: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10000, 650)
        self.recurrent = kind(650, 650, num_layers=2, dropout=0.5, batch_first=True, bidirectional=both)
        self.head = nn.Linear(650 * (1 + both), 10000)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.embedding(tokens))[0])
        return logits


def gru() -> nn.Module:
    return Recurrent(nn.GRU, both=True)


class Routed(nn.Module):
    """A feed-forward layer of experts, each for the tokens that `where` finds for it."""

    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = self.gate(rows).softmax(-1).topk(self.chosen)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            out[row] += weights[row, place, None] * expert(rows[row])
        return out.view_as(x)


class Experts(nn.Module):
    """A language model whose feed-forward layers are routed."""

    def __init__(self, vocab: int = 32000, width: int = 512, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(layers))
        self.routed = nn.ModuleList(Routed(width, 8, 2) for _ in range(layers))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for attention, routed in zip(self.attentions, self.routed, strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + routed(x)
        logits: Tensor = self.head(x)
        return logits


class Literals(nn.Module):
    """Positions, scales and a mask written as literals in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 256), nn.Linear(256, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x * torch.tensor([[0.5], [2.0]], device=x.device).repeat(tokens.shape[1] // 2, 1)
        shown = torch.tensor([True, False], device=x.device).repeat(tokens.shape[1] // 2)
        return self.head(x.masked_fill(shown[:, None], 0.0))  # type: ignore[no-any-return]


class Masked(nn.Module):
    """A masked language model whose head sees only the masked positions."""

    def __init__(self, vocab: int = 30000, width: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.layer = nn.TransformerEncoderLayer(width, 8, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.embedding(tokens))
        masked = torch.rand(tokens.shape, device=tokens.device) < 0.15
        return functional.cross_entropy(self.head(x[masked]), tokens[masked])


class WaveNet(nn.Module):
    """Dilated one-dimensional convolutions with gates."""

    def __init__(self, channels: int = 128, layers: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.gates = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 2, dilation=2**n) for n in range(layers))
        self.mixes = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers))
        self.last = nn.Conv1d(channels, 256, 1)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.first(wave)
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            values, gates = gate(functional.pad(x, (gate.dilation[0], 0))).chunk(2, dim=1)
            x = x + mix(values.tanh() * gates.sigmoid())
        return self.last(x)  # type: ignore[no-any-return]


class Graph(nn.Module):
    """A graph network that sums messages over edges."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            messages = layer(nodes)[edges[0]]
            nodes = torch.zeros_like(nodes).index_add(0, edges[1], messages).relu()
        return nodes


class Diffusion(nn.Module):
    """A small U-Net with transposed convolutions and group norms."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)]
        )
        self.norm = nn.GroupNorm(8, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        fine = functional.silu(self.down[0](images))
        coarse = functional.silu(self.norm(self.down[1](fine)))
        return self.last(torch.cat([fine, self.up(coarse)], dim=1))  # type: ignore[no-any-return]


class Sampler(nn.Module):
    """A model that ends its loop when its own output says so: what it does depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.step = nn.Embedding(1000, 256), nn.Linear(256, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        while x.abs().mean() > 0.01:
            x = self.step(x).tanh() * 0.5
        return x
