"""Every refusal as JSON: ``{"error": {"what", "where", "fix"}}``, and never anything of the inside."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from tokonomics.errors import BadInput, TokonomicsError, did_you_mean, shorten


class Problem(BaseModel):
    """What is wrong, where, and what to do about it."""

    what: str
    where: str | None = None
    fix: str | None = None


class RefusalOut(BaseModel):
    """The body of every answer that is not what was asked for."""

    error: Problem


def problem_response(
    status: int, what: str, *, where: str | None = None, fix: str | None = None, retry_s: int | None = None
) -> JSONResponse:
    body = {"error": {"what": what, "where": where, "fix": fix}}
    return JSONResponse(body, status, {"retry-after": str(retry_s)} if retry_s is not None else None)


def refusal_of(problem: TokonomicsError, status: int, retry_s: int | None = None) -> JSONResponse:
    return problem_response(status, problem.what, where=problem.where, fix=problem.fix, retry_s=retry_s)


def of_validation(found: Sequence[Mapping[str, Any]], known: tuple[str, ...]) -> BadInput:
    """The first thing pydantic found, as a sentence; an unknown input before that, as it explains a missing one."""
    problem = next((error for error in found if error["type"] == "extra_forbidden"), found[0])
    place = [str(part) for part in problem["loc"] if part not in ("body", "query", "path")]
    field = ".".join(place) or "body"
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(place[-1], known) or f"It takes {', '.join(known)}."
        return BadInput(f"unknown input '{shorten(place[-1])}'", where=shorten(field), fix=hint)
    if problem["type"] == "missing":
        return BadInput("is missing", where=shorten(field))
    if problem["type"] == "json_invalid":
        return BadInput("the body is not JSON")
    said = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return BadInput(f"{said} (got {shorten(repr(problem.get('input')), 40)})", where=shorten(field))
