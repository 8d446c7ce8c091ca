"""How a command here ends: what is refused is one line on stderr and exit code 2."""

import sys
from collections.abc import Callable
from pathlib import Path

from absl import app, flags

REFUSED = 2


def run(main: Callable[[], None]) -> None:
    """Parses the flags, calls `main` and exits."""

    def refusing(_: list[str]) -> None:
        try:
            main()
        except ValueError as error:
            _refuse(error)

    app.run(refusing, flags_parser=_parsed)


def _parsed(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        _refuse(error)
    if rest[1:]:
        _refuse(f"takes flags only, written --name=value, got {rest[1]!r}")
    return rest


def _refuse(why: object) -> None:
    print(f"{Path(sys.argv[0]).stem}: {' '.join(str(why).split())}", file=sys.stderr)
    sys.exit(REFUSED)
