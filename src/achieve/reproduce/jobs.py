"""How many runs at a time give the best total rate: found while the runs are made, so that the search costs nothing."""

from __future__ import annotations

from collections.abc import Mapping

WINDOW = 60.0
GAIN = 1.1


class Jobs:
    """Runs at a time on each device: given, or grown from one as long as the devices get more done.

    A minute with all of them moving is a measurement; the time in which one of them is being started or replaced does
    not count. When it shows over a tenth more work than one run fewer did, one more is tried; when not, the number
    before it is kept. Work is in seconds that the steps would cost alone, so that fast and slow presets compare.
    """

    def __init__(self, devices: int, given: int | None = None, most: int = 16, window: float = WINDOW) -> None:
        self.devices = devices
        self.limit = given or 1
        self.settled = given is not None
        self.speeds: dict[int, float] = {}
        """Work per second by runs at a time, as far as measured."""
        self._most = most
        self._window = window
        self._seconds = self._work = 0.0
        self._last: tuple[float, dict[str, float]] = (0.0, {})

    def observe(self, now: float, work: Mapping[str, float]) -> bool:
        """Take in the work done so far by every run that is moving; True when the number was settled just now."""
        if self.settled:
            return False
        (then, before), self._last = self._last, (now, dict(work))
        full = self.limit * self.devices
        if len(work) < full or len(before) < full:
            return False
        self._seconds += now - then
        self._work += sum(work[name] - before[name] for name in work.keys() & before.keys())
        if self._seconds < self._window:
            return False
        self.speeds[self.limit] = self._work / self._seconds
        gained = self.limit - 1 not in self.speeds or self.speeds[self.limit] > GAIN * self.speeds[self.limit - 1]
        if gained and self.limit < self._most:
            self.limit += 1
            self._seconds = self._work = 0.0
            return False
        self._settle(self.limit if gained else self.limit - 1)
        return True

    def no_more(self) -> bool:
        """There is no memory for as many; True when that settles the number just now."""
        if self.settled or self.limit == 1:
            return False
        self._settle(self.limit - 1)
        return True

    def too_many(self) -> None:
        """A run found no memory: one fewer from now on, also where the number was given."""
        self._settle(max(1, self.limit - 1))

    def _settle(self, limit: int) -> None:
        self.limit, self.settled = limit, True
