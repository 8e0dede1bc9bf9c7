"""Named model sizes, and the shape that a size or a set of dimensions comes down to."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

VOCABULARY = 10_000


class ModelShape(BaseModel):
    """The dimensions that decide a Transformer's parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocab: int = VOCABULARY

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    def problem(self) -> str | None:
        """Why this shape is not a Transformer, in one line, or None when it is."""
        if self.d_model % self.heads:
            fits = [heads for heads in range(1, self.d_model + 1) if self.d_model % heads == 0]
            nearest = min(fits, key=lambda heads: abs(heads - self.heads))
            return f"--heads {self.heads} does not divide --d-model {self.d_model}. Nearest that does: {nearest}"
        if self.d_head % 2:
            return (
                f"--d-model {self.d_model} over --heads {self.heads} makes heads {self.d_head} wide, "
                "and rotary embeddings turn pairs: the width must be even"
            )
        return None


SIZES: dict[str, ModelShape] = {
    "tiny": ModelShape(d_model=256, d_ff=1024, layers=4, heads=4),
    "small": ModelShape(d_model=768, d_ff=3072, layers=12, heads=12),
    "medium": ModelShape(d_model=1024, d_ff=4096, layers=24, heads=16),
    "large": ModelShape(d_model=1280, d_ff=5120, layers=36, heads=20),
    "xl": ModelShape(d_model=1600, d_ff=6400, layers=48, heads=25),
    "2.7b": ModelShape(d_model=2560, d_ff=10240, layers=32, heads=32),
    "2026/xl": ModelShape(d_model=2560, d_ff=10240, layers=32, heads=32),
    "10b": ModelShape(d_model=4608, d_ff=12288, layers=50, heads=36),
}
"""Table 1 of the course (2025 edition); `2026/` marks a name that a later edition uses for other dimensions.

`tiny` is ours: a step of it takes well under a second on two CPU cores.
"""
