"""Who missed the SLO, in a sentence."""

import pytest

from tokonomics.report.playback_view import who
from tokonomics.serving.playback import MissCause, MissedRequest

SLOW = {
    "request": 812, "at_s": 60.5, "status": "done", "latency": "ttft", "delivered_s": 2.3, "objective_s": 0.5,
    "cause": MissCause.queue, "queue_s": 2.1, "prefill_s": 0.2, "decode_s": 4.0, "ahead": 14, "beside": 30,
    "preemptions": 0, "restarts": 0, "input_tokens": 7900, "cached_tokens": 0, "output_tokens": 120, "replica": 0,
    "tenant": None, "service": None, "session": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "request 812: TTFT 2.3 s, SLO 500 ms; 7,900 prompt tokens, 120 answer tokens; "
             "it waited 2.1 s in the queue behind 14 others"),
        ({"tenant": "acme", "service": "gold", "cause": MissCause.prefill, "queue_s": 0.0, "cached_tokens": 100},
         "request 812 (tenant acme, class gold): TTFT 2.3 s, SLO 500 ms; 7,900 prompt tokens, 120 answer tokens; "
         "its prompt, 100 tokens of it cached, took 200 ms beside 30 others"),
        ({"cause": MissCause.preemption, "latency": "tpot", "delivered_s": 0.08, "objective_s": 0.05,
          "preemptions": 1, "session": 4},
         "request 812 (session 5): TPOT 80 ms, SLO 50 ms; 7,900 prompt tokens, 120 answer tokens; "
         "it lost its place in memory 1 time, and its answer took 4 s"),
        ({"cause": MissCause.refused, "status": "refused", "latency": None, "delivered_s": None, "objective_s": None},
         "request 812: refused; 7,900 prompt tokens, 120 answer tokens; it is longer than the context or the memory"),
        ({"status": "timed out", "latency": None, "delivered_s": None, "objective_s": None, "decode_s": 0.0,
          "ahead": 1},
         "request 812: timed out after 2.3 s; 7,900 prompt tokens, 120 answer tokens; "
         "it waited 2.1 s in the queue behind 1 other"),
    ],
)  # fmt: skip
def test_a_miss_says_who_by_how_much_and_why(changed: dict[str, object], said: str) -> None:
    assert who(MissedRequest.model_validate(SLOW | changed)) == said
