"""Every example in a docstring runs: the slow ones here in ``make explore``, in ``make test`` for docs/api.md."""

import doctest

import pytest

import tokonomics as tk

EXAMPLES = [
    (name, example.source)
    for name in tk.__all__
    for example in doctest.DocTestParser().get_examples(getattr(tk, name).__doc__ or "")
]
QUICK = {"curve", "fit", "gpus", "models", "offers", "predict", "read_trace", "simulate", "trace"}


@pytest.mark.parametrize(
    ("name", "source"),
    [pytest.param(*each, marks=[] if each[0] in QUICK else [pytest.mark.explore], id=each[0]) for each in EXAMPLES],
)
def test_the_example_of_a_function_answers(name: str, source: str) -> None:
    assert eval(source, {"tk": tk}) is not None


def test_every_function_has_an_example() -> None:
    assert {name for name, _ in EXAMPLES} == set(tk.__all__) - {"TokonomicsError"}
