"""The first signal asks, the second insists, and the old handlers come back."""

import os
import signal
import threading

import pytest

from achieve.run.signals import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_sets_the_flag(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested


def test_second_signal_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_restored_after_an_error_too() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyError), StopRequest():
        assert signal.getsignal(signal.SIGINT) not in before
        raise KeyError
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_can_use_it_without_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


def test_note_is_written_once(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest("stopping"):
        os.kill(os.getpid(), signal.SIGINT)
        assert capfd.readouterr().err == "\nstopping\n"
        os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr().err == ""
