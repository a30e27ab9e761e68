"""What analyses of the agents left behind: the probe, the matching, the discovered hierarchy."""

from __future__ import annotations

from achieve.viz.report.gather import Gathered, Remark
from achieve.viz.report.section import Section


def analyses_sections(gathered: Gathered) -> tuple[list[Section], list[Remark]]:
    return [], []
