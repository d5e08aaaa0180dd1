"""Known vulnerabilities of the locked packages, asked of the Python Packaging Advisory Database: ``make audit``.

pip-audit is fetched into an environment of its own. Both need the network: without it this says so and is no failure;
a vulnerability is.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIP_AUDIT = "pip-audit==2.9.0"


def main() -> int:
    """Of pip-audit: 1 where something is known."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        fetched = subprocess.run(
            [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", PIP_AUDIT], check=False
        )
        if fetched.returncode:
            return _unasked("pip-audit could not be fetched")
        for lock in ("run.lock", "dev.lock"):
            asked = subprocess.run(
                [python, "-m", "pip_audit", "--requirement", ROOT / "requirements" / lock,
                 "--require-hashes", "--disable-pip", "--progress-spinner", "off"],
                capture_output=True, encoding="utf-8", check=False,
            )  # fmt: skip
            answered = "No known vulnerabilities" in asked.stdout + asked.stderr
            if asked.returncode and "Found" not in asked.stderr:
                return _unasked((asked.stderr.strip().splitlines() or ["no answer"])[-1])
            print(f"{lock}: {'no known vulnerabilities' if answered else asked.stdout + asked.stderr}")  # noqa: T201
            if asked.returncode:
                return 1
    return 0


def _unasked(why: str) -> int:
    print(f"not audited, the network is needed: {why}", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
