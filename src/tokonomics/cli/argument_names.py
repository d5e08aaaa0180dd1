"""Messages of the command line for those who ask from Python or over HTTP: arguments by name in place of flags.

Commands that a message tells the reader to type stay as they are.
"""

import re

_NAMES = {"--from": "start", "--to": "end"}
"""Of flags that are no names in Python."""
_COMMAND = r"tokonomics [a-z][^`\n]*"
_FLAG = r"(?<![\w-])--(?P<name>[a-z][a-z-]*[a-z])(?:[ =](?P<number>\d\S*?)(?=[.,;:)]*(?:\s|$)))?"
_EITHER = re.compile(f"{_COMMAND}|{_FLAG}")


def in_python(message: str, mark: str = "") -> str:
    """A message with the names of arguments in place of flags: ``--rate 5`` is ``rate=5``, between marks."""

    def named(found: re.Match[str]) -> str:
        if found["name"] is None:
            return found[0]
        name = _NAMES.get(f"--{found['name']}", found["name"].replace("-", "_"))
        number = found["number"]
        if number is None:
            return f"{mark}{name}{mark}"
        try:
            float(number)
        except ValueError:
            number = f'"{number}"'
        return f"{mark}{name}={number}{mark}"

    return _EITHER.sub(named, message)
