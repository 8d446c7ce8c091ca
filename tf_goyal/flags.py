"""Command-line flags to `Config`: the only reader of absl's flag values.

Every field of `Config` is a flag; the declaration stands in config.py. A recipe is
a flagfile that ships with the package; what is written on the command line wins
over it, wherever it stands:

    python -m tf_goyal.train --recipe=goyal_8k --model_dir=... --data_dir=...

A main function is started by `run`, which gives usage errors their exit code:

    def main(arguments: list[str]) -> None:
        config = flags.config_from_flags()

    if __name__ == "__main__":
        flags.run(main)

This module imports no TensorFlow, so `--help` and a refusal come at once.
"""

import dataclasses
import difflib
import itertools
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import flags as absl_flags

from tf_goyal.config import Config

_HELP = frozenset({"-h", "-help", "--help", "--helpfull"})
REFUSED = 2  # exit code: refused before TensorFlow started
INTERRUPTED = 130  # exit code: Ctrl-C

# The values of the command that runs. `parse` makes them anew each time, so that
# two commands in one process do not share flags: read them as `flags.FLAGS`.
FLAGS = absl_flags.FlagValues()


def run(
    main: Callable[[list[str]], int | None],
    argv: Sequence[str] | None = None,
    *,
    define: Callable[[absl_flags.FlagValues], None] | None = None,
    with_config: bool = True,
    arguments: str = "",
) -> NoReturn:
    """Parses the command line, calls `main` and exits with what it returns.

    A flag error, or a ValueError from `main`, is printed as one line on stderr and
    exits with 2.

    Args:
        main: gets the arguments that are not flags, returns an exit code or None.
        argv: the command line with the program's name first; default sys.argv.
        define: defines the command's own flags on the values it is given; `main`
            reads them as `flags.FLAGS.name`.
        with_config: whether the command takes the flags of Config and --recipe.
        arguments: what arguments that are not flags stand for, such as
            "-- FLAGS"; by default there must be none.
    """
    argv = list(sys.argv if argv is None else argv)
    program = Path(argv[0]).stem
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not where a test caught it
            stream.reconfigure(errors="replace")  # η on an ASCII terminal
    try:
        written = itertools.takewhile(lambda text: text != "--", argv[1:])
        if not _HELP.isdisjoint(written):
            values = _new_values(define, with_config)
            print(_help(values, main, argv[0], arguments))
            sys.exit(0)
        rest = parse(argv, define=define, with_config=with_config)
        if rest and not arguments:
            raise ValueError(
                f"{program} takes flags only, written --name=value, got {rest[0]!r}"
            )
        code = main(rest)
    except (absl_flags.Error, ValueError) as error:
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
        code = REFUSED
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def parse(
    argv: Sequence[str],
    *,
    define: Callable[[absl_flags.FlagValues], None] | None = None,
    with_config: bool = True,
) -> list[str]:
    """Sets FLAGS from a command line (program name first); see `run`.

    Returns:
        the arguments that are not flags.

    Raises:
        absl.flags.Error: an unknown flag, or a value of the wrong form.
        ValueError: an unknown recipe.
    """
    global FLAGS
    written = _new_values(define, with_config)
    line = written.read_flags_from_files(argv[1:], force_gnu=False)
    rest = written([argv[0], *line])[1:]
    if with_config:
        # The recipe goes first, so that what is written wins. The length of a run
        # is two flags of which one is 0: a written one puts the other to rest.
        weaker = []
        if written.recipe:
            weaker.append(f"--flagfile={_recipe_path(written.recipe)}")
        if written.steps and not written["epochs"].present:
            weaker.append("--epochs=0")
        if written.epochs and written["epochs"].present:
            weaker.append("--steps=0")
        written = _new_values(define, with_config)
        written([argv[0], *weaker, *line])
    FLAGS = written
    return rest


def config_from_flags() -> Config:
    """The Config of the command line that `parse` or `run` read."""
    names = (field.name for field in dataclasses.fields(Config))
    return Config(**{name: FLAGS[name].value for name in names})


def define_checkpoint(values: absl_flags.FlagValues) -> None:
    """The flags that say which checkpoint, and where its data set is."""
    absl_flags.DEFINE_string(
        "model_dir", None, "Folder of the run.", flag_values=values, required=True
    )
    absl_flags.DEFINE_integer(
        "step",
        None,
        "Which checkpoint: its number of steps. By default the newest complete one.",
        lower_bound=0,
        flag_values=values,
    )
    absl_flags.DEFINE_string(
        "data_dir",
        None,
        "Folder of the data set, if it is not where it was in training.",
        flag_values=values,
    )


def recipes() -> dict[str, Path]:
    """The recipes by name: installed with the package, or flags/ of a clone."""
    package = Path(__file__).resolve().parent
    installed = package / "recipes"
    folder = installed if installed.is_dir() else package.parent / "flags"
    return {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith((".", "_"))
    }


def _recipe_path(name: str) -> Path:
    known = recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"--recipe must be one of {', '.join(known)}, got {name!r}{meant}"
        )
    return known[name]


class _Parser(absl_flags.ArgumentParser):
    """Text to a value, with an error that says what is wanted."""

    def __init__(self, convert: Callable[[str], Any], wanted: str):
        self._convert = convert
        self._wanted = wanted

    def parse(self, argument: Any) -> Any:
        if not isinstance(argument, str):
            return argument  # a default
        try:
            return self._convert(argument)
        except (KeyError, ValueError):
            raise ValueError(f"must be {self._wanted}") from None


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",")) if text.strip() else ()


_PARSERS = {
    str: _Parser(str, "text"),
    int: _Parser(int, "a whole number"),
    float: _Parser(float, "a number"),
    bool: _Parser(absl_flags.BooleanParser().parse, "true or false"),
    tuple[float, ...]: _Parser(_floats, "numbers separated by commas"),
}


def _parser(field: dataclasses.Field) -> _Parser:
    """What turns a flag's text into the value of a field."""
    choices = field.metadata["choices"]
    if choices:
        allowed = {choice: choice for choice in choices}
        return _Parser(allowed.__getitem__, f"one of {', '.join(choices)}")
    return _PARSERS[field.type]


def _describe(field: dataclasses.Field) -> str:
    """A flag's help with its choices."""
    text, choices = field.metadata["help"], field.metadata["choices"]
    return f"{text} One of: {', '.join(choices)}." if choices else text


def _new_values(
    define: Callable[[absl_flags.FlagValues], None] | None, with_config: bool
) -> absl_flags.FlagValues:
    """Flag values with nothing parsed yet."""
    values = absl_flags.FlagValues()
    if define:
        define(values)
    if with_config:
        absl_flags.DEFINE_string(
            "recipe",
            "",
            "A set of flags that ships with the package; flags on the command line "
            f"win over it. One of: {', '.join(recipes())}.",
            flag_values=values,
        )
        for field in dataclasses.fields(Config):
            flag = absl_flags.Flag(
                _parser(field),
                None,
                field.name,
                field.default,
                _describe(field),
                boolean=field.type is bool,
            )
            absl_flags.DEFINE_flag(flag, values)
    return values


def _help(
    values: absl_flags.FlagValues, main: Callable, script: str, arguments: str
) -> str:
    """The text of --help: every flag with its default, by section."""
    module = sys.modules[main.__module__]
    started = f"-m {module.__spec__.name}" if module.__spec__ else script
    lines = [
        (module.__doc__ or script).strip(),
        "",
        f"Usage: python {started} [--name=value ...] {arguments}".rstrip(),
        "",
        "Each flag is shown with its default; --name and --noname are true and false.",
        "--flagfile=PATH reads flags from a file, one a line; # starts a comment line.",
    ]
    fields = {field.name: field for field in dataclasses.fields(Config)}
    sections: dict[str, list[absl_flags.Flag]] = {}
    for name in values:
        section = fields[name].metadata["section"] if name in fields else "Command"
        sections.setdefault(section, []).append(values[name])
    for section, members in sections.items():
        lines += ["", f"{section}:"]
        for flag in members:
            lines.append(f"  {_as_written(flag)}")
            lines.append(textwrap.indent(textwrap.fill(flag.help, 74), " " * 6))
    return "\n".join(lines)


def _as_written(flag: absl_flags.Flag) -> str:
    """A flag with its default, as a command line would give it."""
    if flag.boolean:
        return f"--{flag.name}" if flag.default else f"--no{flag.name}"
    value = flag.default
    if isinstance(value, tuple):
        value = ",".join(f"{number:g}" for number in value)
    return f"--{flag.name}={'' if value is None else value}"
