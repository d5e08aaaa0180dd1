"""Semantic caching and templates on texts small enough to see through."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from tokonomics.errors import BadInput
from tokonomics.money.levers.semantic_cache import false_hits, semantic_hits
from tokonomics.money.levers.templates import block_templates, text_templates
from tokonomics.traffic.embeddings import HASHED, KEY, Embedded, embed
from tokonomics.traffic.prompts import Prompts, read_pairs, read_prompts


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
    assert [each.accepted for each in made] == [2, 3, 4, 0]
    assert [each.false_share for each in made] == [1 / 2, 1 / 3, 1 / 2, None]
    assert [each.found_share for each in made] == [1 / 2, 1, 1, 0]


def test_hashing_sees_equal_words_and_says_that_it_sees_no_meaning() -> None:
    made = embed(["How do I reset it?", "how do i reset it?", "Une tout autre phrase"], HASHED)
    assert not made.means
    assert float(made.vectors[0] @ made.vectors[1]) == pytest.approx(1.0, abs=1e-6)
    assert abs(float(made.vectors[0] @ made.vectors[2])) < 0.5


def test_an_endpoint_is_asked_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str | None, dict[str, object]]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.headers["Authorization"], body))
            rows = [{"index": at, "embedding": [3.0, 4.0 * at]} for at in range(len(body["input"]))]
            reply = json.dumps({"data": rows[::-1]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(KEY, "a-key")
        try:
            made = embed(["x", "y", "x"], f"http://127.0.0.1:{server.server_port}/v1/embeddings", "small")
        finally:
            server.shutdown()
            thread.join()
    assert seen == [("Bearer a-key", {"model": "small", "input": ["x", "y"]})]
    assert made.vectors.tolist() == [pytest.approx([1, 0]), pytest.approx([0.6, 0.8]), pytest.approx([1, 0])]


def test_an_endpoint_that_is_not_there_is_a_message() -> None:
    with pytest.raises(BadInput, match="gave no embeddings"):
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


def test_files_that_are_none_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question_text,other\nhi,1\n", encoding="utf-8")
    with pytest.raises(BadInput, match="no column of prompts"):
        read_prompts(tmp_path / "a.csv")
    assert read_prompts(tmp_path / "a.csv", "question_text").texts == ("hi",)
    with pytest.raises(BadInput, match="no column text_a"):
        read_pairs(tmp_path / "a.csv")
    with pytest.raises(BadInput, match="no such file"):
        read_prompts(tmp_path / "b.csv")


def test_fixed_words_behind_a_dynamic_part_are_told_apart() -> None:
    head = "You are a careful assistant of the shop and"
    tail = "Answer in three short sentences and name the source of each"
    texts = tuple(f"{head} {'x' * 8}{number} {'y' * 8}{number} {tail}" for number in range(50))
    (made,) = text_templates(Prompts(texts, None, "here"))
    assert made.prompts == 50
    assert made.fixed_head_tokens == pytest.approx(len(head) / 4, abs=1)
    assert made.fixed_later_tokens == pytest.approx(len(tail) / 4, abs=1)


def test_templates_are_the_leading_blocks_that_many_share() -> None:
    from tests.traffic.test_prefix_reuse import blocks_of

    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.load_models import find_model
    from tokonomics.physics.deployment import deploy
    from tokonomics.traffic.trace import make_trace

    lists = [[0, 1, 10 + place] for place in range(4)] + [[0, 2, 20], [30], []]
    prefix = blocks_of(lists, 16)
    trace = make_trace(range(7), [48] * 7, [1] * 7, prefix=prefix)
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    templates, covered, fixed = block_templates(trace, deployment, 0.5)
    assert [(each.requests, each.fixed_tokens) for each in templates] == [(4, 32), (1, 16)]
    assert covered == pytest.approx(5 / 7)
    assert fixed == pytest.approx((4 * 32 + 16) / (7 * 48))
    assert templates[0].kv_bytes == 32 * 131_072
