"""What hostile pages, sites and clients try; each is turned away and learns nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.guarded.inputs import checked_inputs
from tokonomics.questions.request import Kind, Parameter
from tokonomics.web.safety import Gate
from tokonomics.web.service import Service, Settings
from tokonomics.web.verbs import verbs
from tokonomics.workers import TaskRefused

PATHS = [
    "/etc/passwd",
    "../../etc/passwd",
    "./config.json",
    "config.json",
    "~/config.json",
    "~root/.ssh/id_rsa",
    "file:///etc/passwd",
    "FILE:/etc/passwd",
    "http://127.0.0.1:9/config.json",
    "\\\\host\\share\\config.json",
    "C:\\Windows\\win.ini",
    "/proc/self/environ",
    "/dev/stdin",
    "llama-3.1-8b\x00.json",
    "llama-3.1-8b/../../../etc/passwd",
    "/etc/llama-3.1-8b",
    "..",
    "upload:../../etc/passwd",
    "upload:",
    "upload:/etc/passwd",
    "azure-conv/../azure-conv",
    "scenario.toml",
    "\ud800",
]
FILE_PARAMETERS = [
    (verb.name, parameter.name)
    for verb in verbs().values()
    for parameter in verb.parameters.values()
    if parameter.kind in (Kind.MODEL, Kind.TRACE, Kind.FILE, Kind.LENGTHS)
]
TEXT_PARAMETERS = [
    (verb.name, parameter.name)
    for verb in verbs().values()
    for parameter in verb.parameters.values()
    if parameter.kind is Kind.PLAIN and parameter.type is str
]


def no_upload(id: str) -> Path:
    raise BadInput("there is no such upload")


def written(parameter: Parameter, path: str) -> list[str]:
    """A path in every way in which a parameter could take one."""
    if parameter.kind is Kind.LENGTHS:
        return [f"trace:{path}", f" Trace : {path}", f"9:trace:{path}"]
    return [path, f"llama-3.1-8b,{path}"]


@pytest.mark.parametrize("path", PATHS)
def test_no_parameter_that_names_a_file_takes_a_path(path: str) -> None:
    for verb, name in FILE_PARAMETERS:
        parameter = verbs()[verb].parameters[name]
        for text in written(parameter, path):
            given: Any = [text] if parameter.is_list else text
            with pytest.raises(TokonomicsError):
                checked_inputs(verbs()[verb].parameters, {name: given}, no_upload)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "~/x", "file:///x", "http://x/", "a=/etc/x", "a\x00b", "C:\\x"]
)
def test_no_other_text_takes_one_either(path: str) -> None:
    for verb, name in TEXT_PARAMETERS:
        with pytest.raises(TokonomicsError):
            checked_inputs(verbs()[verb].parameters, {name: path}, no_upload)


def test_every_text_of_every_verb_is_of_a_known_kind() -> None:
    """Whoever adds a parameter that opens a file must say so here, or it is refused whatever looks like one."""
    opening = {"model", "model_name", "models", "what", "draft", "trace", "file", "files", "offers", "prompts", "pairs"}
    for verb, name in TEXT_PARAMETERS:
        assert name not in opening, f"{verb} {name}"
    for each in verbs().values():
        assert not {"save", "chart", "html", "deploy_to", "embedding_model", "profile"} & set(each.parameters)


@pytest.mark.parametrize("path", [each for each in PATHS if each != "\ud800"])
def test_a_path_that_exists_and_one_that_does_not_get_the_same_answer(page: TestClient, path: str) -> None:
    replies = [
        page.post("/api/v1/answers/curve", json={"model": each, "gpu": "H100"}) for each in (path, f"{path}-not-there")
    ]
    assert [reply.status_code for reply in replies] == [422, 422]
    said = [reply.json()["error"]["what"].partition(" '")[0] for reply in replies]
    assert said[0] == said[1]
    assert "root:" not in replies[0].text


def test_a_config_on_the_servers_disk_is_not_read_through_a_link_or_the_working_folder(
    page: TestClient, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "my-model").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("my-model", "config.json", str(tmp_path)):
        reply = page.post("/api/v1/answers/fit", json={"model": name, "gpu": "H100"})
        assert reply.status_code == 422
        assert "unknown model" in reply.json()["error"]["what"]
    assert not list(gate.service.uploads.empty.iterdir())


def test_workers_stand_in_an_empty_folder_nobody_can_write_to(gate: Gate) -> None:
    assert gate.service.uploads.empty.stat().st_mode & 0o777 == 0o500
    assert gate.service.uploads.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "name",
    ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "%2fetc%2fpasswd", "../../../../etc/passwd",
     "..\\app.py", "x%00.js", "", ".", "views", "__pycache__"],
)  # fmt: skip
def test_only_files_of_the_page_are_served(page: TestClient, name: str) -> None:
    reply = page.get(f"/static/{name}")
    assert reply.status_code == 404
    assert "import" not in reply.text


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8321", "", "127.0.0.1@evil", "0",
     "10.0.0.7", "[::2]", "127.0.0.1:8321, evil.example", "127.0.0.1 evil"],
)  # fmt: skip
def test_a_foreign_name_that_points_here_is_turned_away(page: TestClient, host: str) -> None:
    for path in ("/", "/api/v1/catalog", "/vega.js", "/static/x.js"):
        assert page.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost:8321", "LOCALHOST", "[::1]:8321", "localhost.:8321"])
def test_our_own_names_are_let_in(page: TestClient, host: str) -> None:
    assert page.get("/api/v1/verbs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8321", "http://127.0.0.1:9999"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
def test_another_sites_page_can_ask_for_nothing(page: TestClient, method: str, origin: str) -> None:
    for path in ("/api/v1/jobs", "/api/v1/answers/curve", "/api/v1/uploads?name=x", "/api/v1/catalog", "/login"):
        assert page.request(method, path, headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_image_script_or_form_is_turned_away(page: TestClient, site: str) -> None:
    embedded = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
    assert page.get("/api/v1/catalog", headers=embedded).status_code == 403
    assert page.get("/vega.js", headers=embedded).status_code == 403
    clicked = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert page.get("/login", headers=clicked).status_code == 200
    assert page.post("/login", headers=clicked).status_code == 403
    assert page.get("/api/v1/catalog", headers=clicked).status_code == 403


def test_our_own_page_may_ask(page: TestClient) -> None:
    own = {"origin": "http://127.0.0.1:8321", "sec-fetch-site": "same-origin"}
    assert page.post("/api/v1/answers/curve", json={"gpu": "H100"}, headers=own).status_code == 422


def test_a_form_of_another_page_cannot_pass_for_json(page: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        reply = page.post("/api/v1/answers/curve", content=b'{"gpu":"H100"}', headers={"content-type": kind})
        assert reply.status_code == 415


def test_a_body_has_a_largest_size(page: TestClient) -> None:
    large = b'{"model":"' + b"x" * 300_000 + b'"}'
    reply = page.post("/api/v1/answers/curve", content=large, headers={"content-type": "application/json"})
    assert reply.status_code == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": NaN}', b"[" * 50_000])
def test_what_is_not_an_object_of_inputs_is_refused_in_one_sentence(page: TestClient, body: bytes) -> None:
    reply = page.post("/api/v1/answers/curve", content=body, headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422)
    assert set(reply.json()["error"]) == {"what", "where", "fix"}


@pytest.mark.parametrize("path", ["/", "/login", "/api/v1/verbs", "/api/v1/nothing", "/static/none.js", "/vega.js"])
def test_every_reply_forbids_scripts_frames_and_sniffing(page: TestClient, path: str) -> None:
    headers = page.get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert "http" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers


def test_answers_are_not_kept_by_caches_and_the_library_is(page: TestClient) -> None:
    assert page.get("/api/v1/verbs").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("method", "path"), [("PUT", "/api/v1/jobs"), ("GET", "/api/v1/report"), ("TRACE", "/")])
def test_other_methods_are_refused_in_our_own_words(page: TestClient, method: str, path: str) -> None:
    reply = page.request(method, path, headers={"content-type": "application/json"})
    assert reply.status_code == 405
    assert reply.json()["error"]["what"]


def test_a_fault_of_ours_tells_the_page_a_number_and_the_log_the_rest(
    page: TestClient, gate: Gate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(gate.service, "request_of", broken)
    reply = page.post("/api/v1/answers/curve", json={"model": "llama-3.1-8b", "gpu": "H100"})
    assert reply.status_code == 500
    assert "secret" not in reply.text
    number = reply.json()["error"]["what"].partition("(error ")[2].rstrip(")")
    assert number
    assert f"error {number}" in capsys.readouterr().err


def test_an_error_does_not_say_where_the_servers_home_is(page: TestClient) -> None:
    reply = page.post("/api/v1/answers/curve", json={"model": "llama-3.1-8b", "gpu": "H1000"})
    assert reply.status_code == 422
    assert "~/.config/tokonomics" in reply.json()["error"]["fix"]


def test_a_home_that_is_the_root_of_the_disk_mangles_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    service = Service(Settings(quick_workers=0, long_workers=0))
    try:
        problem = service.refusal_for(TaskRefused("9/10 rows", where="a/b", fix="See /usr/share."))
        assert isinstance(problem, TokonomicsError)
        assert (problem.what, problem.where, problem.fix) == ("9/10 rows", "a/b", "See /usr/share.")
    finally:
        service.close()


def test_a_body_that_does_not_arrive_is_given_up(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokonomics.web.safety.BODY_S", 0.01)
    sent: list[Any] = []

    async def trickle() -> Any:
        if sent:
            await asyncio.Event().wait()
        sent.append(b"{")
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def hear(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8321"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/answers/curve", "headers": headers, "scheme": "http"}
    asyncio.run(gate({**scope, "query_string": b"", "client": ("127.0.0.1", 1)}, trickle, hear))
    assert sent[1]["status"] == 408


def test_no_verb_fetches_an_address_or_reads_a_model_folder(page: TestClient) -> None:
    for embedder in ("http://127.0.0.1:9/v1", "/models/minilm", "minilm"):
        inputs = {"model": "llama-3.1-8b", "gpu": "H100", "trace": "azure-conv", "semantic": embedder}
        reply = page.post("/api/v1/jobs", json={"verb": "cache", "inputs": inputs})
        assert reply.status_code == 422
        assert reply.json()["error"]["where"] == "semantic"
