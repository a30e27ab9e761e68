"""The `achieve` command: a table of subcommands, each a module of `achieve.commands`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

from rich.console import Console

import achieve
from achieve.commands import ABOUT, plain_table
from achieve.errors import AchieveError, UntrustedError, did_you_mean, on_one_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns the exit code."""
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:  # `achieve ... | head`: whoever reads has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("--version", "-V"):
        print(f"achieve {achieve.__version__}")
        return 0
    if not arguments or arguments[0] in ("--help", "-h") or arguments[0] not in ABOUT:
        return _usage(arguments)
    name, rest = arguments[0], arguments[1:]
    try:
        module = f"{name}_" if iskeyword(name) else name
        import_module(f"achieve.commands.{module}").run(rest)
    except UntrustedError as error:
        again = shlex.join(["achieve", *arguments])
        print(f"achieve {name}: {error}. The command is then:\n  {again} {error.flag}", file=sys.stderr)
        return 2
    except AchieveError as error:
        print(f"achieve {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:  # of a path that was given
        path = on_one_line(str(error.filename or "a file")[:80])
        print(f"achieve {name}: {path}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"achieve {name}: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def _usage(arguments: list[str]) -> int:
    wrong = bool(arguments) and not arguments[0].startswith("-")
    stream = Console(stderr=wrong, highlight=False)
    if wrong:
        hint = did_you_mean(arguments[0], ABOUT)
        stream.print(f"achieve: unknown command {arguments[0]!r}{hint}\n", markup=False)
    stream.print("usage: achieve COMMAND [OPTIONS]     (achieve COMMAND --help explains the options)\n", markup=False)
    stream.print(plain_table(("", ""), ((f"  {name}", line) for name, line in ABOUT.items())))
    return 2 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
