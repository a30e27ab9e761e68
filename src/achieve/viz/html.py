"""HTML pages from the templates beside this file. A page is one file: it needs neither a network nor a script."""

import base64
import math
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from achieve.scoring.episodes import title_case
from achieve.viz.table import Interval, MeanStd, Missing

_PAGES = Environment(loader=PackageLoader("achieve.viz"), autoescape=True, undefined=StrictUndefined)


def render(template: str, **values: Any) -> str:
    """Fill a template; every value is escaped."""
    return _PAGES.get_template(template).render(**values)


def _number(value: float, digits: int = 2, unit: str = "") -> str:
    return f"{value:.{digits}f}{unit}" if math.isfinite(value) else "-"


_PAGES.filters |= {
    "data_url": lambda data, kind: f"data:{kind};base64,{base64.b64encode(data).decode()}",
    "number": _number,
    "title_case": title_case,
}
_PAGES.globals["nan"] = math.nan
_PAGES.tests |= {
    "missing": lambda cell: isinstance(cell, Missing),
    "spread": lambda cell: isinstance(cell, MeanStd | Interval),
}
