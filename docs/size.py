"""How large the house is: lines, files and classes by package.

python docs/size.py   (`make size`)
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = 40
"""Lines below which a file is a function, not an idea."""


def main() -> None:
    package = ROOT / "src" / "tokonomics"
    folders = sorted({path.relative_to(package).parts[0] for path in package.glob("*/**/*.py")})
    groups = {"(top)": sorted(package.glob("*.py"))}
    groups |= {folder: sorted((package / folder).rglob("*.py")) for folder in folders}
    print(f"{'src/tokonomics':16}{'lines':>8}{'files':>7}{'classes':>9}{f'< {SMALL} lines':>12}")
    rows = {name: _counts(files) for name, files in groups.items()}
    for name, row in rows.items():
        print(f"{name:16}{row[0]:8,}{row[1]:7}{row[2]:9}{row[3]:12}")
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    print(f"{'all':16}{total[0]:8,}{total[1]:7}{total[2]:9}{total[3]:12}")
    for name in ("tests", "docs", "benchmarks"):
        lines, files, _, _ = _counts(sorted((ROOT / name).rglob("*.py")))
        print(f"{name:16}{lines:8,}{files:7}")
    verbs = re.findall(r'^    Verb\("', (package / "questions" / "verbs.py").read_text(encoding="utf-8"), re.M)
    print(f"{'verbs':16}{len(verbs):8}  and those that answer no question: see `tokonomics --help`")


def _counts(files: list[Path]) -> tuple[int, int, int, int]:
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    lines = {file: len(text.splitlines()) for file, text in texts.items()}
    small = sum(count < SMALL for file, count in lines.items() if file.name not in ("__init__.py", "__main__.py"))
    classes = sum(len(re.findall(r"^class ", text, re.M)) for text in texts.values())
    return sum(lines.values()), len(files), classes, small


if __name__ == "__main__":
    main()
