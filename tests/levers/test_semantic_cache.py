"""Semantic caching and templates on texts small enough to see through."""

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deployed import on
from tests.traffic.test_prefix_reuse import blocks_of

from tokonomics.catalog.offers import SNAPSHOT, load_offers
from tokonomics.errors import BadInput
from tokonomics.levers.semantic_cache import (
    LINK_BYTES,
    VCPU_USD_PER_HOUR,
    SemanticLever,
    VectorIndex,
    false_hits,
    semantic_cache_lever,
    semantic_hits,
)
from tokonomics.levers.templates import template_lever, text_templates, with_less_room
from tokonomics.money.cache_tiers import DRAM_USD_PER_GB_HOUR
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes
from tokonomics.physics.steptime import step_model
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_system
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.prompts import HASHED, KEY, Embedded, Prompts, embed, read_pairs, read_prompts
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Trace, make_trace

USD = 3.0


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return on()


def on_circle(*degrees: float) -> Embedded:
    radians = np.deg2rad(degrees)
    return Embedded(np.stack([np.cos(radians), np.sin(radians)], 1).astype(np.float32), "by hand", True, 0.0)


def test_only_misses_are_stored_so_similarity_does_not_wander() -> None:
    """20 degrees apart each: the third is near the second, which was a hit and is not stored."""
    pytest.importorskip("usearch")
    made = semantic_hits(Prompts(("a", "b", "c"), None, "here"), on_circle(0, 20, 40), (np.cos(np.deg2rad(25)),))
    assert made.points[0].hit_share == pytest.approx(1 / 3)
    assert made.points[0].stored == 2


def test_what_is_too_old_is_not_found() -> None:
    pytest.importorskip("usearch")
    prompts = Prompts(("a", "a", "a"), np.array([0.0, 5.0, 20.0]), "here")
    shares = [semantic_hits(prompts, on_circle(0, 0, 0), (0.9,), ttl_s).points[0].hit_share for ttl_s in (1, 10, 30)]
    assert shares == pytest.approx([0, 1 / 3, 2 / 3])


def test_false_hits_are_counted_against_labels() -> None:
    first, second = on_circle(0, 0, 0, 0).vectors, on_circle(5, 10, 30, 80).vectors
    made = false_hits(first, second, np.array([True, False, True, False]), (0.95, 0.80, 0.0, 1.5))
    assert [point.accepted for point in made] == [2, 3, 4, 0]
    assert [point.false_share for point in made] == [1 / 2, 1 / 3, 1 / 2, None]
    assert [point.found_share for point in made] == [1 / 2, 1, 1, 0]


def test_hashing_sees_equal_words_and_says_that_it_sees_no_meaning() -> None:
    made = embed(["How do I reset it?", "how do i reset it?", "Une tout autre phrase"], HASHED)
    assert not made.means
    assert float(made.vectors[0] @ made.vectors[1]) == pytest.approx(1.0, abs=1e-6)
    assert abs(float(made.vectors[0] @ made.vectors[2])) < 0.5


@contextmanager
def endpoint(reply: Callable[[BaseHTTPRequestHandler, Any], None]) -> Iterator[int]:
    """A server that replies to what is posted, and its port."""

    class Replies(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reply(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            reply(self, None)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Replies) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def send_rows(to: BaseHTTPRequestHandler, rows: Sequence[object], longer_by: int = 0) -> None:
    text = json.dumps({"data": rows}).encode()
    to.send_response(200)
    to.send_header("Content-Length", str(len(text) + longer_by))
    to.end_headers()
    to.wfile.write(text)


def test_an_endpoint_is_asked_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str | None, dict[str, object]]] = []

    def backwards(to: BaseHTTPRequestHandler, body: Any) -> None:
        seen.append((to.headers["Authorization"], body))
        send_rows(to, [{"index": at, "embedding": [3.0, 4.0 * at]} for at in reversed(range(len(body["input"])))])

    monkeypatch.setenv(KEY, "a-key")
    with endpoint(backwards) as port:
        made = embed(["x", "y", "x"], f"http://127.0.0.1:{port}/v1/embeddings", "small")
    assert seen == [("Bearer a-key", {"model": "small", "input": ["x", "y"]})]
    assert made.vectors.tolist() == [pytest.approx([1, 0]), pytest.approx([0.6, 0.8]), pytest.approx([1, 0])]


def test_the_key_is_not_sent_on_to_where_an_endpoint_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []

    def redirect(to: BaseHTTPRequestHandler, _: Any) -> None:
        seen.append((to.path, to.headers["Authorization"]))
        to.send_response(302 if to.command == "POST" else 404)
        to.send_header("Location", f"http://localhost:{to.server.server_port}/elsewhere")  # type: ignore[attr-defined]
        to.end_headers()

    monkeypatch.setenv(KEY, "a-key")
    with endpoint(redirect) as port, pytest.raises(BadInput):
        embed(["x"], f"http://127.0.0.1:{port}/v1/embeddings", "small")
    assert seen == [("/v1/embeddings", "Bearer a-key"), ("/elsewhere", None)]


@pytest.mark.parametrize(
    ("embeddings", "longer_by"),
    [
        (["AACAPw==", "AAAAQA=="], 0),  # base64, as some servers write them
        ([[None, 1.0], [0.0, 1.0]], 0),
        ([[float("nan"), 1.0], [0.0, 1.0]], 0),
        ([[1e300, 1.0], [0.0, 1.0]], 0),
        ([[1.0, 0.0], [1.0]], 0),
        ([[], []], 0),
        ([3, 4], 0),
        ([], 0),
        ([[1.0, 0.0], [0.0, 1.0]], 10),  # the line breaks before the end
    ],
)
def test_what_is_no_list_of_numbers_is_refused(embeddings: list[object], longer_by: int) -> None:
    rows = [{"index": at, "embedding": embedding} for at, embedding in enumerate(embeddings)]
    with endpoint(lambda to, _: send_rows(to, rows, longer_by)) as port, pytest.raises(BadInput):
        embed(["x", "y"], f"http://127.0.0.1:{port}/v1/embeddings", "small")


def test_an_endpoint_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput):
        embed(["x"], "http://127.0.0.1:9/v1/embeddings", "small")


def test_prompts_of_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    lines = [{"prompt": "late", "arrival_s": 5.0}, {"prompt": "early", "arrival_s": 2.0}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    chat = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]}
    (tmp_path / "c.jsonl").write_text(json.dumps(chat), encoding="utf-8")
    assert read_prompts(tmp_path / "a.txt").texts == ("one", "two")
    timed = read_prompts(tmp_path / "b.jsonl")
    assert timed.texts == ("early", "late")
    assert timed.arrival_s is not None
    assert timed.arrival_s.tolist() == [0.0, 3.0]
    assert read_prompts(tmp_path / "c.jsonl").texts == ("Be kind.\nHello",)


@pytest.mark.parametrize(("yes", "no"), [("1", "0"), ("1.0", "0.0"), ("true", "false"), ("True", "FALSE")])
def test_a_label_is_read_however_yes_and_no_are_written(tmp_path: Path, yes: str, no: str) -> None:
    (tmp_path / "a.csv").write_text(f"text_a,text_b,label\nhi,hello,{yes}\nhi,bye,{no}\n", encoding="utf-8")
    rows = [{"text_a": "hi", "text_b": other, "label": other == "hello"} for other in ("hello", "bye")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for name in ("a.csv", "a.jsonl"):
        assert read_pairs(tmp_path / name).same.tolist() == [True, False]


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question_text,other\nhi,1\n", encoding="utf-8")
    assert read_prompts(tmp_path / "a.csv", "question_text").texts == ("hi",)
    for read, name in ((read_prompts, "a.csv"), (read_pairs, "a.csv"), (read_prompts, "b.csv")):
        with pytest.raises(BadInput):
            read(tmp_path / name)


def test_fixed_words_behind_a_dynamic_part_are_told_apart() -> None:
    head = "You are a careful assistant of the shop and"
    tail = "Answer in three short sentences and name the source of each"
    texts = tuple(f"{head} {'x' * 8}{number} {'y' * 8}{number} {tail}" for number in range(50))
    (made,) = text_templates(Prompts(texts, None, "here"))
    assert made.prompts == 50
    assert made.fixed_head_tokens == pytest.approx(len(head) / 4, abs=1)
    assert made.fixed_later_tokens == pytest.approx(len(tail) / 4, abs=1)


def test_templates_are_the_leading_blocks_that_many_share(deployment: Deployment) -> None:
    lists = [[0, 1, 10 + place] for place in range(4)] + [[0, 2, 20], [30], []]
    prefix = blocks_of(lists, 16)
    trace = make_trace(range(7), [48] * 7, [1] * 7, prefix=prefix)
    made = template_lever(deployment, trace, 3.0, least_share=0.5)
    assert [(template.requests, template.fixed_tokens) for template in made.templates] == [(4, 32), (1, 16)]
    assert made.covered_share == pytest.approx(5 / 7)
    assert made.fixed_share == pytest.approx((4 * 32 + 16) / (7 * 48))
    assert made.templates[0].kv_bytes == 32 * 131_072


HEAD, WHOLE, KINDS, ROUNDS = 8_192, 65_536, 10, 4
"""Ten templates in turn, each the first eighth of prompts of which the GPU's memory holds seven."""


@pytest.fixture(scope="module")
def in_turn() -> Trace:
    blocks, head = WHOLE // 512, HEAD // 512
    lists = []
    for request in range(KINDS * ROUNDS):
        kind = request % KINDS
        own = 1_000_000 + request * blocks
        lists.append([kind * head + place for place in range(head)] + [own + place for place in range(blocks - head)])
    ids = {each: place for place, each in enumerate(sorted({block for each in lists for block in each}))}
    prefix = blocks_of([[ids[block] for block in each] for each in lists], 512)
    return make_trace(
        [20.0 * place for place in range(len(lists))], [WHOLE] * len(lists), [8] * len(lists), prefix=prefix
    )


def test_an_eighth_of_a_prompt_saves_less_than_an_eighth_of_its_time(deployment: Deployment, in_turn: Trace) -> None:
    made = template_lever(deployment, in_turn, USD, least_share=0.05)
    model, count = step_model(deployment), KINDS * ROUNDS
    whole, rest = float(model.prefill(WHOLE)), float(model.prefill(WHOLE - HEAD, HEAD))
    hours = in_turn.duration_s / 3600
    assert made.fixed_share == pytest.approx(1 / 8)
    assert made.pinned == KINDS
    assert made.bill.before.usd == pytest.approx(count * whole / 3600 / hours * USD, rel=1e-3)
    once_usd = KINDS * float(model.prefill(HEAD)) / 3600 * USD
    assert made.once_usd == pytest.approx(once_usd)
    assert made.bill.saved_usd * hours == pytest.approx(count * (whole - rest) / 3600 * USD - once_usd, rel=1e-3)
    assert made.bill.saved_share < 0.08
    assert made.templates[0].saved_s_per_request == pytest.approx(whole - rest, rel=1e-3)
    assert made.kv_bytes == KINDS * HEAD * 131_072
    assert made.room_share == pytest.approx(made.kv_bytes / kv_budget_bytes(deployment), rel=1e-3)
    smaller = with_less_room(deployment, made.kv_bytes)
    assert kv_budget_bytes(deployment) - kv_budget_bytes(smaller) == pytest.approx(made.kv_bytes, rel=1e-6)
    assert float(step_model(smaller).prefill(WHOLE)) == whole
    assert with_less_room(deployment, kv_budget_bytes(deployment) / 2).limits == deployment.limits


def test_templates_that_do_not_fit_half_the_memory_are_not_all_pinned(deployment: Deployment, in_turn: Trace) -> None:
    small = with_less_room(deployment, kv_budget_bytes(deployment) - 1.3 * WHOLE * 131_072)
    made = template_lever(small, in_turn, USD, least_share=0.05)
    assert made.pinned == int(1.3 * WHOLE / 2 / HEAD)
    assert made.room_share <= 0.5


def test_what_the_cache_keeps_anyway_is_saved_once_and_below_the_runs_prefill(deployment: Deployment) -> None:
    trace = generate(
        parse_arrivals("poisson:4"), parse_lengths("const:1000", "input"), parse_lengths("const:50", "output"),
        requests=400, seed=1, system=parse_system("1,tokens=2048"),
    )  # fmt: skip
    made = template_lever(deployment, trace, USD)
    simulated = outcome(simulate(deployment, trace))
    spent_usd = simulated.shares.prefill * simulated.replica_hours * USD
    hours = trace.duration_s / 3600
    assert made.templates
    assert made.fixed_share > 0.5
    assert made.bill.saved_usd * hours <= spent_usd
    # The GPU's cache never lets go of it: what is left to save is computing it the first time.
    assert abs(made.bill.saved_usd) * hours <= 2 * made.once_usd


@pytest.fixture(scope="module")
def asked() -> Trace:
    return generate(
        parse_arrivals("poisson:60"), parse_lengths("const:1500", "input"),
        parse_lengths("const:200", "output"), requests=1500,
    )  # fmt: skip


TEXTS = Prompts(("four" * 10, "four" * 30), None, "here")


def test_without_hits_the_replicas_stay_and_the_caches_own_cost_is_added(deployment: Deployment, asked: Trace) -> None:
    index = VectorIndex(bytes_per_vector=1536, embed_s=0.02, lookup_s=0.001, add_s=0.002)
    made = semantic_cache_lever(deployment, asked, TEXTS, 0.0, lambda count: USD, embed_usd_per_mtok=0.1, index=index)
    assert made.replicas_after == made.replicas_before > 1
    assert made.bill
    embedding = 20 * len(asked) / 1e6 / (asked.duration_s / 3600) * 0.1
    stored = len(asked) * (1536 + LINK_BYTES + 200 * 4)
    assert made.stored_bytes == stored
    vcpus = math.ceil(len(asked) / asked.duration_s * 0.023)  # some 60 a second of 23 ms each: two
    beside = embedding + stored / 1e9 * DRAM_USD_PER_GB_HOUR + vcpus * VCPU_USD_PER_HOUR
    assert vcpus == 2
    assert made.bill.after.usd == pytest.approx(made.bill.before.usd + beside)
    assert made.share_of_gpus == pytest.approx(beside / (made.replicas_after * USD))
    assert made.bill.before.usd == made.replicas_before * USD


def test_where_every_prompt_hits_no_replica_is_needed(deployment: Deployment, asked: Trace) -> None:
    made = semantic_cache_lever(deployment, asked, TEXTS, 1.0, lambda count: USD, embed_usd_per_mtok=0.1)
    assert made.replicas_after == 0
    assert made.ttft_after_s is None
    assert made.bill
    assert made.bill.after.usd == pytest.approx(made.bill.after.line("embedding").usd)


def test_more_hits_never_need_more_replicas(deployment: Deployment, asked: Trace) -> None:
    needs = [
        semantic_cache_lever(deployment, asked, TEXTS, share, lambda count: USD).replicas_after
        for share in (0.0, 0.3, 0.6, 1.0)
    ]
    assert needs == sorted(needs, reverse=True)


def test_the_look_up_is_waited_for_and_may_break_a_slo(deployment: Deployment, asked: Trace) -> None:
    few = asked.take(np.arange(300))

    def lever(wait_s: float, slo: str | None = None) -> SemanticLever:
        slos = parse_slos(slo) if slo else ()
        return semantic_cache_lever(deployment, few, TEXTS, 0.0, lambda count: USD, wait_s=wait_s, slos=slos)

    now, late = lever(0.0), lever(0.25)
    assert now.ttft_after_s == now.ttft_before_s == late.ttft_before_s
    assert late.ttft_after_s
    assert late.ttft_after_s.mean == pytest.approx(now.ttft_after_s.mean + 0.25)  # type: ignore[operator, union-attr]
    for targeted in ("ttft_p99=0.2", "ttft_p99=0.251"):
        broken = lever(0.25, targeted)
        assert broken.bill is None
        assert broken.breaks
    assert lever(0.0, "ttft_p99=0.2").bill
    assert lever(0.25, "ttft_p99=0.45,tpot_p99=0.1").replicas_after == lever(0.0, "ttft_p99=0.2").replicas_after


def test_a_million_entries_of_a_small_model() -> None:
    """384 numbers of 4 bytes, 16 links of 10, an answer of 300 tokens of 4 bytes: 2.9 GB, under a cent an hour."""
    memory, processors = VectorIndex(bytes_per_vector=1536).lines(10**6, 10**6 * 1200, 3600.0, 3600.0)
    assert memory.quantity == pytest.approx((1536 + 160 + 1200) / 1000)
    assert memory.usd == pytest.approx(2.896 * 0.216 / 68.72, rel=1e-3)
    assert processors.quantity == 0


def test_processors_are_whole_and_the_look_up_grows_with_the_logarithm() -> None:
    index = VectorIndex(bytes_per_vector=1536, embed_s=0.01, lookup_s=0.001, add_s=0.002, measured_entries=1000)
    assert index.vcpus(1000, requests_per_s=50, added_per_s=40) == 1  # 0.63 of one
    assert index.vcpus(1000, requests_per_s=100, added_per_s=80) == 2  # 1.26
    assert index.slower(10**6) == pytest.approx(2)  # six digits against three
    assert index.slower(10) == 1
    assert index.vcpus(10**6, requests_per_s=100, added_per_s=80) == 2  # 100 × 12 ms + 80 × 4 ms = 1.52


def test_the_price_of_a_vcpu_is_what_two_machines_differ_by() -> None:
    small, large = (
        next(
            offer
            for offer in load_offers(SNAPSHOT)
            if (offer.provider, offer.region, offer.instance) == ("aws", "us-east-1", name)
        )
        for name in ("g6.2xlarge", "g6.4xlarge")
    )
    assert small.usd_per_hour is not None
    assert large.usd_per_hour is not None
    parts = 8 * VCPU_USD_PER_HOUR + 32 * 1.073741824 * DRAM_USD_PER_GB_HOUR
    assert parts == pytest.approx(large.usd_per_hour - small.usd_per_hour)
    assert LINK_BYTES == 160
