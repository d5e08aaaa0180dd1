"""Speculative decoding: a small draft proposes some tokens, one step of the model checks them all.

Where each proposed token is accepted with probability ``a``, independently, a round of ``k`` proposals yields
``(1 − a^(k+1)) ÷ (1 − a)`` tokens (Leviathan, Kalman and Matias, 2023, arXiv:2211.17192, equation 1). A round costs
``k`` passes of the draft and one of the model on ``k + 1`` tokens of each sequence, in one step of the engine;
``steptime`` divides that by the yield. A step with prompts drafts nothing, but the draft computes the same tokens for
its own KV. So a token takes its mean time: the simulator sees evenly paced tokens where a server sends small bunches.
"""

import math
from enum import StrEnum

from pydantic import Field, model_validator

from tokonomics.catalog.models import ModelSpec
from tokonomics.types import Noun

ACCEPTANCE = 0.65
"""Assumed where the user's own is not known: no table of pairs like those drafted here could be cited. Near it are 0.64
and 0.71 for GPT-2 medium and large drafted by DistilGPT-2, greedy (hurjun/speculative-decoding-lab), and 0.74, 0.64 and
0.65 for the first three tokens of Qwen3.6-27B's own draft head (vLLM's counters in noonghunna/club-3090#105,
2026-05-08); far from it is 0.98 on other texts (eugr/spark-vllm-docker#200). It is a property of the texts, the
temperature and the pair: measure it."""
DRAFT_TOKENS = 3
"""Assumed: as in vLLM's own example of a draft model (vllm-project/vllm#24322, 2025-09-05); few, since a full batch has
no idle arithmetic to spend on proposals that fail."""


class DraftMethod(StrEnum):
    """What drafts, by the name that vLLM gives it."""

    mtp = "mtp"  # a module of the model's own checkpoint, with the model's embedding and head
    eagle3 = "eagle3"  # a head trained for the model, in a checkpoint of its own
    draft_model = "draft_model"


class Speculation(Noun):
    """How a deployment drafts."""

    method: DraftMethod = DraftMethod.draft_model
    checkpoint: str | None = None  # where the draft is found; None: in the model's own, or by the draft's name
    source: str | None = None  # of the acceptance; None: as given, or assumed

    tokens: int = Field(default=DRAFT_TOKENS, ge=1, le=16)  # proposed in a round
    acceptance: float = Field(default=ACCEPTANCE, ge=0, le=1)  # chance that a proposed token is the model's own
    draft: ModelSpec | None = None  # runs on the same GPUs, its weights and KV beside the model's
    draft_share: float | None = Field(default=None, ge=0, le=10)
    """Instead of a model: what one token of the draft costs, in steps of the model; takes no memory here."""

    @model_validator(mode="after")
    def _one_draft(self) -> "Speculation":
        if (self.draft is None) == (self.draft_share is None):
            raise ValueError("a draft is a model, or a share of the model's own step")
        return self

    @property
    def name(self) -> str:
        """Such as ``mtp:3``; of a draft model, its key."""
        what = self.draft.key if self.draft and self.method is DraftMethod.draft_model else self.method.value
        return f"{what}:{self.tokens}"

    @property
    def tokens_per_round(self) -> float:
        return expected_tokens(self.acceptance, self.tokens)


def expected_tokens(acceptance: float, proposed: int) -> float:
    """Of a round: the accepted ones and the one that the check itself gives, 1 + a + … + a^k."""
    return math.fsum(acceptance**accepted for accepted in range(proposed + 1))


def acceptance_for(tokens_per_round: float, tokens: int) -> float | None:
    """The acceptance from which a round of so many proposals yields that much; None where none does.

    The yield only rises with the acceptance: halved until it is found.
    """
    if tokens_per_round > tokens + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = expected_tokens(middle, tokens) >= tokens_per_round
        low, high = (low, middle) if enough else (middle, high)
    return high
