"""LiteLLM, installed in an environment of its own, prices calls by the file that we export: ``make check-litellm``.

Packages are the locked ones, their hashes checked. Without the network this says so and is no failure; a wrong price
is.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = "tests/measure/test_litellm.py"


def main() -> int:
    """Of pytest: 0 where LiteLLM agrees with the ledger."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip: list[str | Path] = [
            python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile",
        ]  # fmt: skip
        locks = [word for lock in ("run.lock", "litellm.lock") for word in ("-r", ROOT / "requirements" / lock)]
        fetched = subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", *locks], check=False)
        if fetched.returncode:
            print("LiteLLM is not asked: its packages could not be fetched")  # noqa: T201
            return 0
        # The tree itself, and the tests beside it. What LiteLLM warns of is not ours to mend.
        nowhere = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        tested: list[str | Path] = [
            python, "-m", "pytest", "--quiet", "-s", "-rs", "--noconftest", "-W", "ignore", "-p",
            "no:cacheprovider", TESTS,
        ]  # fmt: skip
        return subprocess.run(tested, cwd=ROOT, env={**os.environ, **nowhere}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
