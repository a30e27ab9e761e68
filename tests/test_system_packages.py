"""`tools/system-packages` with stand-ins for the system: what it installs, and what it says where it cannot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "system-packages"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Machine:
    """Commands of a bare machine, first in the PATH; ``log`` is how apt-get was called."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.log, self.installed = folder / "bin", folder / "log", folder / "installed"
        self.bin.mkdir()
        for name in ("python3", *BROWSERS):
            self.command(name, f'test -e "{self.installed}"')
        self.command("sudo", "exit 1")
        self.command("apt-get", "exit 1")
        self.command("id", "echo 1000")

    def command(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, *parts: str) -> str:
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHON": "python3"}
        done = subprocess.run([SCRIPT, *parts], env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_said_or_done_where_all_is_there(machine: Machine) -> None:
    machine.installed.touch()
    assert machine.run("venv", "heist", "browser") == ""


def test_what_cannot_be_installed_is_named_with_the_way_to_get_it(machine: Machine) -> None:
    machine.command("apt-get", f'echo "$@" >>"{machine.log}"')
    lines = machine.run("heist", "browser").splitlines()
    assert len(lines) == 2 and not machine.log.exists(), "a user without sudo asks for nothing"
    assert "OpenGL and GLib" in lines[0] and lines[0].endswith("sudo apt-get install libgl1 libglib2.0-0")
    assert "a browser" in lines[1] and lines[1].endswith("sudo apt-get install chromium fonts-liberation")


@pytest.mark.parametrize("by", ["root", "sudo"])
def test_what_can_be_installed_without_asking_is(machine: Machine, by: str) -> None:
    """The first try fails, as where the list of packages was never fetched."""
    machine.command(
        "apt-get",
        f"""echo "$@" >>"{machine.log}"
        case "$*" in
          *update*) touch "{machine.installed}.listed" ;;
          *) test -e "{machine.installed}.listed" && touch "{machine.installed}" ;;
        esac""",
    )
    machine.command("id", f"echo {0 if by == 'root' else 1000}")
    if by == "sudo":
        machine.command("sudo", 'test "$1" = -n && shift && "$@"')
    assert machine.run("heist") == "installing libgl1 libglib2.0-0 ...\n"
    calls = machine.log.read_text().splitlines()
    assert [call.split()[3] for call in calls] == ["install", "update", "install"]
    assert calls[0].endswith("libgl1 libglib2.0-0")


def test_failed_installation_is_said_and_does_not_stop_the_rest(machine: Machine) -> None:
    machine.command("id", "echo 0")
    out = machine.run("heist", "browser")
    assert out.count("installing ") == 2 and out.count("which is missing") + out.count("which are missing") == 2
