"""Cautions as tests read and make them."""

from sysbench.log.outcomes import Caution, caution
from sysbench.render.sentences.cautions import say


def in_words(caution: Caution) -> str:
    """The caution as a sentence about one cell."""
    return say([("here", caution)], str)


def drift(change_share: float, remedy: str = "wait", direction: str = "slower") -> Caution:
    return caution("drift", remedy, about=("step", direction), change_share=change_share)
