"""Find the APIs that sell tokens: by name (``host:model``), by host, and every host of exactly one model.

Hosts spell a model in their own ways (``meta.llama3-3-70b-instruct-v1:0``, ``Meta-Llama-3_3-70B-Instruct-Turbo``,
``llama-v3p1-8b-instruct``). Two names mean the same model if the same letters and numbers remain in the same order
after the vendor, the words for an instruction-tuned checkpoint, and those for how a host serves it are removed.
Versions remain: DeepSeek-V3-0324 is not DeepSeek-V3, and a fine-tune has other words.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from tokonomics.catalog.apis import ApiPrice, shipped_api, shipped_apis, shipped_apis_of, user_api
from tokonomics.catalog.entries import user_tables
from tokonomics.catalog.load_models import ModelRow, model_rows
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import UnknownName
from tokonomics.types import today

Words = tuple[str, ...]

_VENDOR = re.compile(r"^(?:databricks-|(?:meta|mistral|openai|qwen|google|nvidia|minimax|moonshotai?|zai)\.)")
_BEDROCK = re.compile(r"(?:-v1|-1)?:0$")
"""What AWS adds to the name of a model: ``-v1:0``; in ``v0:1`` it is the model's own version."""
_SERVED = re.compile(
    r"instruct-(?:turbo|lite|basic)|(?:fp8|fp16|bf16|awq|gptq|int4|nvfp4)(?:-fast)?$|(?:versatile|instant|specdec)$"
)
"""How a host serves it: at fewer bits, or on faster machines (Together's Turbo and Lite, Groq's Versatile)."""
_TUNED = frozenset({"instruct", "chat", "it", "hf"})
_MAKERS = frozenset({"meta", "nvidia"})
"""Words that some write before the family's name and others leave out: Meta-Llama, NVIDIA-Nemotron."""


@lru_cache(maxsize=1 << 14)
def words_of(name: str) -> Words:
    """Return the letters and numbers that distinguish models, in order: ``llama 3 3 70 b``."""
    bare = _BEDROCK.sub("", _VENDOR.sub("", name.casefold().rsplit("/", 1)[-1]))
    bare = re.sub(r"(?<=\d)p(?=\d)", ".", _SERVED.sub("", bare))  # Fireworks writes 3p1 for 3.1
    if ":" in bare.replace("v0:", ""):
        return (name,)  # :free, :batch, :thinking mean another price or another use
    words = [word for word in re.findall(r"\d+|[^\W\d_]+", bare) if word not in _TUNED]
    return tuple(word for place, word in enumerate(words) if not _is_noise(words, place))


def _is_noise(words: list[str], place: int) -> bool:
    """Decide whether a word is a maker at the beginning, or the v of a version."""
    number_follows = place + 1 < len(words) and words[place + 1].isdigit()
    return (place == 0 and words[0] in _MAKERS) or (words[place] == "v" and number_follows)


_MEANT: dict[Words, str] = {("qwen", "3", "coder"): "qwen3-coder-480b-a35b"}
"""Short names that fit several models and mean one: OpenRouter's page of qwen/qwen3-coder says 480B A35B."""


def names_of(model: ModelSpec, asked: str) -> frozenset[Words]:
    """Return the names of exactly the model that was asked for, as ``words_of`` writes them.

    The catalogue also finds other checkpoints of the same shape under a model, because they cost the same to serve: a
    distilled one, a later release. Their names have words that the model's own name does not have; one of them is meant
    only if it was asked for. A short name that also fits another model, such as mistral-small, belongs to no model.
    """
    own, known = _own_names(model), _known_words(model)
    others = [_known_words(other) for other in model_rows() if other.key != model.key]
    shorter = {words_of(alias) for alias in model.aliases}
    same = own | {
        words for words in shorter if known.issuperset(words) and not any(map(frozenset(words).issubset, others))
    }
    same |= {words for words, key in _MEANT.items() if key == model.key}
    wanted = words_of(asked)
    return same if known.issuperset(wanted) else frozenset({wanted})


def _own_names(model: ModelSpec | ModelRow) -> frozenset[Words]:
    """Return its key, its name, and its name where it was published.

    Its other published names belong to other checkpoints: a later release, or one that thinks.
    """
    published = model.repository
    return frozenset(words_of(name) for name in (model.key, model.name, published) if name is not None)


def _known_words(model: ModelSpec | ModelRow) -> frozenset[str]:
    return frozenset(word for words in _own_names(model) for word in words)


def hosts_of(model: ModelSpec, asked: str) -> list[ApiPrice]:
    """Return every price of that model at a host that still sells it; a price of zero is a trial and is left out."""
    names = names_of(model, asked)
    sold = (api for api in _named(names) if not api.deprecated and (api.input_usd_per_mtok or api.output_usd_per_mtok))
    return [api for api in sold if words_of(api.model) in names]


def _named(names: Collection[Words]) -> list[ApiPrice]:
    """Return the APIs with one of these names, sorted; all of them if the user's own may replace some."""
    if user_tables("apis"):
        return list_apis()

    def is_named(name: str) -> bool:
        spelled = name.casefold()  # has every word: that is quicker to see than which words it has
        return any(all(word.casefold() in spelled for word in words) for words in names) and words_of(name) in names

    return sorted(shipped_apis_of(today(), is_named), key=lambda api: api.key)


def find_api(name: str, extra: Sequence[ApiPrice] = ()) -> ApiPrice:
    """Return the price of ``host:model``: from your catalogue file, from ``extra``, or the shipped one."""
    wanted = name.strip().casefold()
    tables = {key.casefold(): (key, table) for key, table in user_tables("apis").items()}
    shipped = next((api for api in extra if api.key.casefold() == wanted), None) or shipped_api(wanted)
    if wanted in tables:
        return user_api(*tables[wanted], shipped)
    if shipped is None:
        raise _unknown_api(name, [*(key for key, _ in tables.values()), *(api.key for api in extra)])
    key = shipped.key.casefold()
    return user_api(*tables[key], shipped) if key in tables else shipped


def list_apis(host: str | None = None, match: str | None = None, extra: Sequence[ApiPrice] = ()) -> list[ApiPrice]:
    """Return every API with token prices, your own included, sorted by name."""
    found = {api.key.casefold(): api for api in (*shipped_apis(today()), *extra)}
    for key, table in user_tables("apis").items():
        found[key.casefold()] = user_api(key, table, found.get(key.casefold()))
    hosts = {api.host for api in found.values()}
    if host is not None and host.casefold() not in {name.casefold() for name in hosts}:
        raise UnknownName("API host", host, hosts, fix=f"Known: {', '.join(sorted(hosts))}")
    chosen = [api for api in found.values() if host is None or api.host.casefold() == host.casefold()]
    chosen = [api for api in chosen if match is None or match.casefold() in api.key.casefold()]
    return sorted(chosen, key=lambda api: api.key)


def _unknown_api(name: str, own: Iterable[str]) -> UnknownName:
    host, colon, model = name.strip().partition(":")
    known = [*own, *(api.key for api in shipped_apis(today()))]
    hosts = {key.partition(":")[0] for key in known}
    fix = 'Or put it into your catalogue file: [apis."host:model"] input = 2.5, output = 10, date = 2026-08-22'
    if colon and host.casefold() not in {other.casefold() for other in hosts}:
        return UnknownName("API host", host, hosts, fix=fix, listing="tokonomics apis")
    if not colon:
        offering = [key for key in known if key.partition(":")[2].casefold() == name.strip().casefold()]
        return UnknownName("API", name, offering or known, fix=fix, listing="tokonomics apis")
    same_host = [key for key in known if key.casefold().startswith(host.casefold() + ":")]
    return UnknownName("API", f"{host}:{model}", same_host, fix=fix, listing="tokonomics apis")
