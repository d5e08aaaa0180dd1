"""Learn about a server before it is loaded: its model, how it counts tokens, and which settings it refuses."""

from time import perf_counter

from tokonomics.addresses import BenchTarget
from tokonomics.errors import BadInput, nearest, option
from tokonomics.measure.bench.client import KEY_VARIABLE, Client, Reply
from tokonomics.measure.bench.sessions import BenchPrompts, scale_from

_FEW, _MORE, _MANY = 8, 40, 80  # words of the first two prompts, and those from which a third one tells more
_NEARLY = 0.9  # share of the length asked for: longer might be refused


async def only_model(client: Client, target: BenchTarget) -> str:
    """Return the name of the server's only model."""
    names = [*await client.models()]
    if not names:
        why = f": {client.trouble}" if client.trouble else ""
        fix = f"Is it up? Name the model with {option('model')}; a key is taken from {KEY_VARIABLE}."
        raise BadInput(f"the server lists no model{why}", where=target.shown, fix=fix)
    if len(names) > 1:
        shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        raise BadInput(f"the server has {len(names)} models", field="model", fix=f"Name one of: {shown}")
    return names[0]


async def learn(
    client: Client, prompts: BenchPrompts, target: BenchTarget, model: str, longest: int | None
) -> tuple[list[Reply], list[str]]:
    """Learn how the server counts: two short prompts, then one of nearly the length asked for, which tells best.

    Return what was sent for it, and what should be known of the server.
    """
    sent: list[Reply] = []
    notes: list[str] = []

    async def counted(words: int) -> int:
        while True:
            reply = await client.ask(prompts.of_words(words, 2), perf_counter())
            sent.append(reply)
            if reply.error is None:
                return reply.input_tokens
            refused = reply.status is not None and 400 <= reply.status < 500
            if refused and "max_completion_tokens" in reply.error and prompts.limit_name == "max_tokens":
                prompts.limit_name = "max_completion_tokens"
            elif refused and reply.status in (400, 422) and prompts.extras:
                prompts.extras = {}
                notes.append("The server refuses ignore_eos: answers may be shorter than asked for.")
            else:
                raise await _no_answer(client, target, model, reply)

    few, more = await counted(_FEW), await counted(_MORE)
    prompts.scale = scale_from((_FEW, _MORE), (few, more))
    nearly = 0 if longest is None else prompts.scale.words(round(_NEARLY * longest))
    if nearly > _MANY:
        prompts.scale = scale_from((_FEW, nearly), (few, await counted(nearly)))
    return sent, notes


async def _no_answer(client: Client, target: BenchTarget, model: str, reply: Reply) -> BadInput:
    fix = "Is it up, and is this its address?"
    if reply.status in (401, 403):
        fix = f"Set {KEY_VARIABLE} to a key of this server."
    elif reply.status == 404:
        known = [*await client.models()]
        guesses = nearest(model, known) or known[:3]
        fix = f"Its models: {', '.join(guesses)}." if guesses else "Is the path right? Such as http://host:8000/v1."
    elif reply.status in (400, 413, 422):
        fix = f"A smaller {option('input')} may be all it takes, or another {option('model')}."
    elif "without usage" in (reply.error or ""):
        fix = "The server ignores stream_options.include_usage: tokens cannot be counted, so it cannot be measured."
    return BadInput(f"no first answer: {reply.error}", where=target.shown, fix=fix)
