"""Cautions as tests read and make them."""

from sysbench.log.outcomes import Caution, Quantity
from sysbench.render.sentences.cautions import say


def in_words(caution: Caution) -> str:
    """The caution as a sentence about one cell."""
    return say([("here", caution)], str)


def drift(change_share: float, remedy: str = "wait", direction: str = "slower") -> Caution:
    change = Quantity("change_share", change_share, "share")
    return Caution(code="drift", numbers=(change,), about=("step", direction), remedy=remedy)
