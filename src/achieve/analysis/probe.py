"""Appendix A: how well do an agent's latents predict the next achievement?

An expert plays episodes. Each state's label is the next achievement that its episode unlocks; states after the last one
have none and are left out. An agent's encoder is frozen and a linear classifier is trained on its latents. The paper
draws training and test states from the same episodes, so that neighbouring, nearly equal states with the same label lie
on both sides. That split is here as "state"; the other one, "episode", keeps episodes apart.

What the paper leaves open: minibatches have 512 states, reshuffled each epoch, and latents are those after the last
activation, by themselves and not normalised. `ProbeSettings.latents` has the other readings.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from achieve.agent import Agent
from achieve.analysis.recordings import Images, Ints, Recordings, encode, representations
from achieve.errors import ConfigError
from achieve.nn.cuda_graphs import GraphRunner
from achieve.nn.layers import NormDense

BINS = 25
"""Bars of the histogram, as in the paper's figure."""
POOL_PER_STATE = 215_578 / 60_000
"""States the paper collected for each one it used."""

Latents = Literal["encoder", "linear", "heads"]


@dataclass(frozen=True)
class ProbeSettings:
    """How the classifier is trained; the defaults are the paper's, and 512 where it is silent."""

    states: int = 50_000
    test_states: int = 10_000
    epochs: int = 500
    learning_rate: float = 1e-3
    batch_size: int = 512
    """States per update; 0 takes all at once."""
    latents: Latents = "encoder"
    """What the classifier sees: the encoder's latents (`encoder`), those before their activation (`linear`), or those
    joined with the memory of the previous achievement, as policy and value function see them (`heads`)."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("states", "test_states", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')} is {getattr(self, name)}; it must be 1 or more")
        if self.batch_size < 0:
            raise ConfigError(f"batch-size is {self.batch_size}; it must be 0 (all states at once) or more")
        if self.latents not in get_args(Latents):
            raise ConfigError(f"latents is {self.latents!r}; it must be one of {', '.join(get_args(Latents))}")

    @property
    def pool(self) -> int:
        """States to collect, in the paper's proportion."""
        return round((self.states + self.test_states) * POOL_PER_STATE)


class Split(NamedTuple):
    """States to train on and to test on, as indices into all labelled ones."""

    name: str
    train: Ints
    test: Ints


@dataclass(frozen=True)
class States:
    """Labelled states of all episodes: where each lies, its episode, and its next achievement. All [n]."""

    recordings: Recordings
    episode: Ints
    step: Ints
    label: Ints

    def images(self, chosen: Ints) -> Images:
        """Return the observations of some states, [k, H, W, C]."""
        episodes = self.recordings.episodes
        return np.stack([episodes[e].images[t] for e, t in zip(self.episode[chosen], self.step[chosen], strict=True)])


@dataclass(frozen=True)
class ProbeResult:
    """One agent under one split.

    Attributes:
        accuracy: percent of test states whose next achievement is predicted correctly.
        median_confidence: of the probability given to the true label of each test state, as the mean.
        majority_accuracy: percent correct when always predicting the most frequent training label.
        histogram: the share of test states in each of 25 equal bins of confidence.
        per_achievement: test states and percent correct, as "states" and "accuracy".
    """

    split: str
    accuracy: float
    median_confidence: float
    mean_confidence: float
    train_accuracy: float
    majority_accuracy: float
    histogram: list[float]
    per_achievement: dict[str, dict[str, float]]


def labelled_states(recordings: Recordings) -> States:
    """Return every state that has a next achievement."""
    rows = []
    for number, episode in enumerate(recordings.episodes):
        labels = episode.next_labels()
        steps = np.flatnonzero(labels >= 0)
        rows.append(np.stack([np.full(len(steps), number), steps, labels[steps]]))
    episode_of, step, label = np.concatenate(rows, axis=1).astype(np.int64)
    return States(recordings, episode_of, step, label)


def make_splits(states: States, settings: ProbeSettings) -> list[Split]:
    """Return the paper's split, of states of all episodes, and one of which no episode is on both sides."""
    train, test = settings.states, settings.test_states
    rng = np.random.default_rng(settings.seed)
    _enough(len(states.label), train + test, "states with a next achievement")
    drawn = rng.permutation(len(states.label))[: train + test]
    order = rng.permutation(np.unique(states.episode))
    counts = np.bincount(states.episode, minlength=int(order.max(initial=0)) + 1)[order]
    # Test episodes hold the test states' share of all, so that these come from as many episodes as can be spared.
    share = test / (train + test) * counts.sum()
    cut = int(np.searchsorted(np.cumsum(counts), max(share, test))) + 1
    for_test = np.isin(states.episode, order[:cut])
    held, rest = np.flatnonzero(for_test), np.flatnonzero(~for_test)
    _enough(len(held), test, "states in test episodes")
    _enough(len(rest), train, "states in training episodes")
    return [
        Split("state", drawn[:train], drawn[train:]),
        Split("episode", rng.permutation(rest)[:train], rng.permutation(held)[:test]),
    ]


def _enough(available: int, wanted: int, what: str) -> None:
    if available < wanted:
        raise ConfigError(
            f"there are {available:,} {what}, and {wanted:,} are needed; give a larger --pool or ask for fewer"
        )


def classifier_inputs(
    agent: Agent,
    states: States,
    chosen: Ints,
    readings: Sequence[Latents] = ("encoder",),
    progress: Callable[[float], None] = lambda share: None,
) -> dict[Latents, Tensor]:
    """Return what the classifier sees of some states, [k, D], by each reading of `ProbeSettings.latents`.

    The states are encoded once for all readings.
    """
    network, images = agent.network, states.images(chosen)
    if "heads" in readings and network.config.core != "none":
        raise ConfigError(
            "the heads of a recurrent agent see its core, which depends on all that it did; probe --latents encoder"
        )
    last = getattr(network.encoder, "latent", None)
    if "linear" in readings and not isinstance(last, NormDense):
        raise ConfigError("it is not known where this agent's encoder has its last activation; leave out --latents")
    before_activation: list[Tensor] = []
    with ExitStack() as hooks:
        if "linear" in readings and isinstance(last, NormDense):
            hooks.enter_context(
                last.linear.register_forward_hook(lambda layer, inputs, output: before_activation.append(output))
            )
        phi = encode(agent, images, progress=lambda done: progress(done / len(chosen)))
    inputs: dict[Latents, Tensor] = {}
    for reading in readings:
        if reading == "linear":
            inputs[reading] = torch.cat(before_activation)
        elif reading == "heads" and network.config.memory:
            inputs[reading] = torch.cat([phi, _memories(agent, states, chosen).to(phi.device)], 1)
        else:
            inputs[reading] = phi
    return inputs


def _memories(agent: Agent, states: States, chosen: Ints) -> Tensor:
    """Return what the agent remembers in some states, [k, D], on the CPU: its last unlock before, zeros if none."""
    episodes, place = np.unique(states.episode[chosen], return_inverse=True)
    played = [states.recordings.episodes[number] for number in episodes]
    nu = representations(agent, played)
    nothing = torch.zeros(agent.network.latent_size)
    past = [int(np.searchsorted(played[e].unlocks, t)) for e, t in zip(place, states.step[chosen], strict=True)]
    return torch.stack([nu[e][count - 1] if count else nothing for e, count in zip(place, past, strict=True)])


def train_classifier(
    latents: Tensor,
    labels: Tensor,
    classes: int,
    settings: ProbeSettings,
    progress: Callable[[int], None] = lambda epoch: None,
) -> nn.Linear:
    """Train a linear classifier on frozen latents [n, D] with labels [n], by Adam on the cross-entropy."""
    generator = torch.Generator().manual_seed(settings.seed)
    model = nn.Linear(latents.shape[1], classes)
    bound = latents.shape[1] ** -0.5
    with torch.no_grad():  # PyTorch's own start, from a generator of our own
        for parameter in model.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    model = model.to(latents.device)
    parameters = list(model.parameters())
    on_gpu = latents.is_cuda
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate, capturable=on_gpu)
    size = settings.batch_size or len(labels)

    def one_epoch(order: Tensor) -> None:
        for batch in order.split(size):
            loss = nn.functional.cross_entropy(model(latents[batch]), labels[batch])
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            optimizer.step()

    # An update is so small that a GPU would wait for Python. The first epoch, step by step, sets up Adam's state.
    run = GraphRunner(lambda: [], enabled=on_gpu, calls_first=1)
    for epoch in range(settings.epochs):
        run("epoch", one_epoch, torch.randperm(len(labels), generator=generator).to(latents.device))
        progress(epoch + 1)
    return model


@torch.no_grad()
def judge(
    model: nn.Linear, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], names: Sequence[str], split: str
) -> ProbeResult:
    """Evaluate a trained classifier; ``train`` and ``test`` are latents [n, D] and labels [n]."""
    latents, labels = test
    probabilities = model(latents).double().softmax(1)
    right = (probabilities.argmax(1) == labels).cpu().numpy()
    confidence = probabilities.gather(1, labels[:, None])[:, 0].cpu().numpy()
    truth, seen = labels.cpu().numpy(), train[1].cpu().numpy()
    counts, _ = np.histogram(confidence, BINS, (0.0, 1.0))
    return ProbeResult(
        split,
        accuracy=100 * float(right.mean()),
        median_confidence=float(np.median(confidence)),
        mean_confidence=float(confidence.mean()),
        train_accuracy=100 * float((model(train[0]).argmax(1) == train[1]).double().mean()),
        majority_accuracy=100 * float((truth == np.bincount(seen, minlength=len(names)).argmax()).mean()),
        histogram=(counts / len(confidence)).tolist(),
        per_achievement={
            names[i]: {"states": int((truth == i).sum()), "accuracy": 100 * float(right[truth == i].mean())}
            for i in np.unique(truth)
        },
    )


def probe(
    agent: Agent,
    states: States,
    splits: Sequence[Split],
    settings: ProbeSettings,
    progress: Callable[[float], None] = lambda share: None,
) -> list[ProbeResult]:
    """Train and evaluate a classifier for each split. ``progress`` is told the share of the work that is done."""
    return probe_readings(agent, states, splits, [settings], progress)[0]


def probe_readings(
    agent: Agent,
    states: States,
    splits: Sequence[Split],
    readings: Sequence[ProbeSettings],
    progress: Callable[[float], None] = lambda share: None,
) -> list[list[ProbeResult]]:
    """Probe an agent once for each of several settings, of the same splits; its states are encoded once."""
    names = states.recordings.names
    # A state drawn by both splits is encoded once.
    used = np.unique(np.concatenate([part for split in splits for part in (split.train, split.test)]))
    parts = 1 + len(splits) * len(readings)
    seen = [settings.latents for settings in readings]
    inputs = classifier_inputs(agent, states, used, seen, lambda share: progress(share / parts))
    results: list[list[ProbeResult]] = [[] for _ in readings]
    for part, (number, split) in enumerate(itertools.product(range(len(readings)), splits), 1):
        settings, latents = readings[number], inputs[seen[number]]
        labels = torch.from_numpy(states.label[used]).to(latents.device)
        rows = [torch.from_numpy(np.searchsorted(used, some)).to(latents.device) for some in (split.train, split.test)]
        train, test = ((latents[some], labels[some]) for some in rows)

        def tell(epoch: int, part: int = part, epochs: int = settings.epochs) -> None:
            progress((part + epoch / epochs) / parts)

        model = train_classifier(*train, len(names), settings, tell)
        results[number].append(judge(model, train, test, names, split.name))
    return results
