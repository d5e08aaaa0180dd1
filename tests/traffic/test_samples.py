"""The shipped samples are what their sources published."""

import numpy as np
import pytest

from tokonomics.errors import UnknownName
from tokonomics.traffic.formats import FOLDER, SAMPLES, TRACES, sample_lengths
from tokonomics.traffic.readers import open_trace

# Requests, and mean tokens of prompt and answer, counted from the published files with gzip and awk.
PUBLISHED = {
    "azure-code": (8_819, 2047.85, 27.88),
    "azure-conv": (19_366, 1154.70, 211.13),
    "mooncake-conversation": (12_031, 12035.06, 342.62),
    "mooncake-synthetic": (3_993, 15325.48, 149.12),
    "arxiv": (28_257, 2588.08, 291.43),
    "sharegpt": (30_731, 2340.03, 438.71),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_lengths_are_those_published(name: str) -> None:
    inputs, outputs = sample_lengths(name)
    requests, prompt, answer = PUBLISHED[name]
    assert len(inputs) == len(outputs) == requests
    assert inputs.mean() == pytest.approx(prompt, abs=0.005)
    assert outputs.mean() == pytest.approx(answer, abs=0.005)


@pytest.mark.parametrize("name", TRACES)
def test_a_sample_opens_by_its_name(name: str) -> None:
    file = open_trace(name)
    trace = file.read()
    assert len(trace) == PUBLISHED[name][0]
    assert file.problems.count == 0
    assert trace.source == f"{name} (shipped sample)"
    assert 1000 < trace.duration_s < 3600
    inputs, outputs = sample_lengths(name)
    assert (np.sort(inputs) == np.sort(trace.input_tokens)).all()
    assert (np.sort(outputs) == np.sort(trace.output_tokens)).all()


@pytest.mark.parametrize("name", ["mooncake-conversation", "mooncake-synthetic"])
def test_mooncake_blocks_cover_every_prompt(name: str) -> None:
    trace = open_trace(name).read()
    assert trace.prefix is not None
    assert trace.prefix.block_tokens == 512
    assert (np.diff(trace.prefix.starts) == -(-trace.input_tokens // 512)).all()
    assert trace.prefix.distinct == len(np.unique(trace.prefix.ids)) == trace.prefix.ids.max() + 1


def test_the_samples_stay_small_and_are_described() -> None:
    files = list(FOLDER.glob("*.parquet"))
    assert {file.stem for file in files} == set(SAMPLES)
    assert sum(file.stat().st_size for file in files) < 1_600_000
    described = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in described for name in SAMPLES)
    with pytest.raises(UnknownName):
        sample_lengths("azure-cov")
