"""Install the built wheel as a user would, into an environment of its own, and use it: ``make check-install``.

The locked packages come with their hashes checked, the wheel from ``dist``; afterwards nothing may ask the network.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"
COMMANDS = (
    ["-W", "error", "-c", "import tokonomics; print('imported', tokonomics.__version__)"],
    ["-m", "tokonomics", "--version"],
    ["-m", "tokonomics", "doctor"],
    [
        "-m", "tokonomics", "plan", "llama-3.1-8b", "--gpu", "L4", "--rate", "1", "--input", "500", "--output",
        "100", "--quick",
    ],
    ["-m", "tokonomics", "trace", "azure-conv"],
    ["-m", "tokonomics", "web", "--help"],
)  # fmt: skip


def main(wheel: Path) -> None:
    """Fails with the command that failed."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip: list[str | Path] = [
            python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile",
        ]  # fmt: skip
        lock = ROOT / "requirements" / "run.lock"
        subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", lock], check=True)
        subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
        home = Path(folder) / "home"
        home.mkdir()
        env = {
            **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
            **{"HOME": str(home), "http_proxy": NOWHERE, "https_proxy": NOWHERE},
        }
        for command in COMMANDS:
            subprocess.run([python, *command], check=True, cwd=home, env=env, stdout=subprocess.DEVNULL)
        entry = subprocess.run(
            [python.with_name("tokonomics"), "--version"], check=True, cwd=home, env=env, capture_output=True, text=True
        )
    print(f"{wheel.name}: installed and used in a fresh environment, {entry.stdout.strip()}")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
