"""How many runs at a time give the best total rate: found while the runs are made, so that the search costs nothing."""

from __future__ import annotations

from collections.abc import Mapping

WINDOW = 60.0
GAIN = 1.1


class Jobs:
    """Runs at a time on each device: given, or grown from one as long as the devices get more done.

    Every minute in which the same runs were all moving is a measurement. When it shows over a tenth more work than one
    run fewer did, one more is tried; when not, the number before it is kept. Work is in seconds that the steps would
    cost alone, so that fast and slow presets can be compared.
    """

    def __init__(self, devices: int, given: int | None = None, most: int = 16, window: float = WINDOW) -> None:
        self.devices = devices
        self.limit = given or 1
        self.settled = given is not None
        self.speeds: dict[int, float] = {}
        """Work per second by runs at a time, as far as measured."""
        self._most = most
        self._window = window
        self._since: tuple[float, dict[str, float]] | None = None

    def observe(self, now: float, work: Mapping[str, float]) -> bool:
        """Take in the work done so far by every run that is moving; True when the number was settled just now."""
        if self.settled:
            return False
        if self._since is None or self._since[1].keys() != work.keys():
            self._since = (now, dict(work))
            return False
        then, before = self._since
        if now - then < self._window or len(work) < self.limit * self.devices:
            return False
        self._since = None
        self.speeds[self.limit] = sum(work[name] - before[name] for name in work) / (now - then)
        gained = self.limit - 1 not in self.speeds or self.speeds[self.limit] > GAIN * self.speeds[self.limit - 1]
        if gained and self.limit < self._most:
            self.limit += 1
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
        self.limit, self.settled, self._since = limit, True, None
