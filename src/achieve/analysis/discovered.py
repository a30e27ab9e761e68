"""What an agent has discovered, as a file: the clusters of its achievements, and the graph over them.

`achieve hierarchy` writes it. With it, any achievement of that agent can be recognised while it plays, by the nearest
cluster: `achieve play` shows this.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from achieve.agent import find_weights
from achieve.analysis.graphs import Edge
from achieve.analysis.hierarchy import Discovered
from achieve.errors import RunFolderError
from achieve.run.weights import file_sha256, load_weights, save_weights
from achieve.settings import Range, UnfitError, convert, parse_json

FILE_NAME = "discovered.safetensors"
MOST = 64
"""Clusters there are at most."""


class Clusters(NamedTuple):
    """The clusters of an agent's achievements."""

    names: tuple[str, ...]
    """Each named after its members' most frequent label."""
    labels: tuple[str, ...]
    """The true achievements they are named after."""
    edges: tuple[Edge, ...]
    """Between names: what almost always came before what."""
    centres: NDArray[np.float32]
    """Unit vectors [k, D]."""

    def similarities(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cosine similarities of unit vectors [n, D] to all clusters, [n, k]."""
        return vectors @ self.centres.T


def save_discovered(path: Path, found: Discovered, source: str | Path) -> None:
    """Write what was discovered by the agent of ``source``, whose weights are named by their SHA-256."""
    clusters = found.hierarchy.clusters
    about = {
        "names": [cluster.name for cluster in clusters],
        "labels": [cluster.label for cluster in clusters],
        "edges": [list(edge) for edge in found.hierarchy.edges],
        "weights": file_sha256(find_weights(source)),
    }
    save_weights(path, {"centres": torch.from_numpy(found.centres).half()}, {"discovered": json.dumps(about)})


_Names = Annotated[list[str], Range(0, MOST)]
_ABOUT = {"names": _Names, "labels": _Names, "edges": list[Annotated[list[str], Range(2, 2)]], "weights": str}


def load_discovered(path: Path, weights: str) -> Clusters:
    """Read what the agent with these weights (their SHA-256) has discovered."""
    tensors, metadata = load_weights(path)
    try:
        about = convert(_ABOUT, parse_json(metadata.get("discovered", "")), "discovered")
    except (ValueError, UnfitError) as error:
        raise RunFolderError(f"{path} does not hold what an agent has discovered ({error})") from error
    if about["weights"] != weights:
        raise RunFolderError(f"{path} is about another agent; write it again with achieve hierarchy")
    names, labels, centres = about["names"], about["labels"], tensors.get("centres")
    known = set(names)
    if centres is None or centres.dim() != 2 or not len(centres) == len(names) == len(labels) == len(known):
        raise RunFolderError(f"{path}: its clusters are incomplete; write it again with achieve hierarchy")
    if not centres.float().isfinite().all() or not known.issuperset(name for edge in about["edges"] for name in edge):
        raise RunFolderError(f"{path}: its clusters cannot be; write it again with achieve hierarchy")
    units = torch.nn.functional.normalize(centres.float(), dim=1).numpy()
    return Clusters(tuple(names), tuple(labels), tuple((a, b) for a, b in about["edges"]), units)


def find_discovered(source: str | Path, elsewhere: Sequence[Path] = ()) -> Clusters | None:
    """Return what the agent of ``source`` has discovered: from beside its weights, or from these folders; or None.

    A file about other weights, such as those of an earlier checkpoint, is passed over.
    """
    weights = find_weights(source)
    sha256 = file_sha256(weights)
    beside = [weights.with_name(f"{weights.stem}-{FILE_NAME}"), weights.with_name(FILE_NAME)]
    for path in (*beside, *(folder / sha256[:16] / FILE_NAME for folder in elsewhere)):
        if path.is_file():
            try:
                return load_discovered(path, sha256)
            except RunFolderError:
                continue
    return None
