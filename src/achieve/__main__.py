"""`python -m achieve`: the same as the `achieve` command."""

from achieve.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
