"""Who was scraped: a target by its labels, and by the one name that people, the book and reports know it by.

A pod has its own name, whatever address it has after a restart; engines that share a pod are told apart by their ports.
No two servers may have one name at the same time, nor one server two: tokens would be lost, or count twice.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from tokonomics.errors import BadInput, option, shorten

TARGET_LABELS = ("cluster", "namespace", "job", "pod", "container", "instance")
"""Who was scraped, by the names that Prometheus and its Kubernetes operator use."""

TargetKey = tuple[tuple[str, str], ...]
Scraped = Iterable[tuple[TargetKey, float]]  # targets and times, oldest first


def target_of(labels: Mapping[str, str]) -> TargetKey:
    return tuple((name, labels[name]) for name in TARGET_LABELS if labels.get(name))


def target_name(target: TargetKey) -> str:
    """A target as people call it: its pod, else its instance, with what is above it."""
    labels = dict(target)
    for names in (("cluster", "namespace", "pod"), ("cluster", "instance")):
        if names[-1] in labels:
            return "/".join(labels[name] for name in names if name in labels)
    fix = "Sums over servers hide their restarts: ask a Prometheus that keeps the label instance."
    raise BadInput("the series of engines carry neither pod nor instance", field="prometheus", fix=fix)


class TargetNames:
    """Names that were given; they stay."""

    def __init__(self) -> None:
        self._names: dict[TargetKey, str] = {}
        self._parts: dict[str, set[str]] = defaultdict(set)

    def of(self, target: TargetKey) -> str:
        return self._names[target]

    def keep(self, target: TargetKey, name: str) -> None:
        """As the book has it."""
        self._names[target] = name
        self._parts[target_name(target)].add(_part(target))

    def learn(self, scraped: Scraped) -> None:
        """Name the targets that are new: by the pod alone where it has one engine."""
        scraped = list(scraped)
        new = list(dict.fromkeys(target for target, _ in scraped if target not in self._names))
        for target in new:
            self._parts[target_name(target)].add(_part(target))
        for target in new:
            name, part = target_name(target), _part(target)
            self._names[target] = f"{name}:{part}" if part and len(self._parts[name]) > 1 else name
        _refuse_at_once(scraped, self.of, "{} is the name of two servers, {} and {}")


def refuse_two_scrapers(scraped: Scraped) -> None:
    """A server that two jobs scrape would be counted twice."""

    def address(target: TargetKey) -> str | None:
        instance = dict(target).get("instance", "")
        # Without a port it is a name that somebody gave, perhaps to several.
        return instance if ":" in instance else None

    _refuse_at_once(scraped, address, "{} is scraped twice, as {} and as {}: its tokens would count twice")


def _refuse_at_once(scraped: Scraped, who: Callable[[TargetKey], str | None], said: str) -> None:
    """Refuses two targets that are the same to ``who`` and were scraped over the same time."""
    spans: dict[tuple[str, str], dict[TargetKey, tuple[float, float]]] = defaultdict(dict)
    for target, at in scraped:
        same = who(target)
        if same is not None:
            targets = spans[dict(target).get("cluster", ""), same]
            first, _ = targets.get(target, (at, at))
            targets[target] = (first, at)
    for (_, same), targets in spans.items():
        ordered = sorted(targets.items(), key=lambda item: item[1])
        for (one, (_, end)), (other, (start, _)) in pairwise(ordered):
            if start < end:
                words = _words(one, other), _words(other, one)
                fix = f"Choose one: {option('query')} '{words[0]}'."
                raise BadInput(said.format(shorten(same, 200), *words), field="prometheus", fix=fix)


def _part(target: TargetKey) -> str:
    """What tells engines of a pod apart: the port, or else the container."""
    labels = dict(target)
    _, colon, port = labels.get("instance", "").rpartition(":")
    return port if colon and "pod" in labels else labels.get("container", "")


def _words(labels: TargetKey, unlike: TargetKey) -> str:
    return ",".join(f'{shorten(name)}="{shorten(value, 120)}"' for name, value in labels if (name, value) not in unlike)
