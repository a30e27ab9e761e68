"""Errors meant for people: one sentence that names the value, what is accepted, and a way out.

The command line prints them without a traceback and exits with code 2.
"""


class AchieveError(Exception):
    """Base of every error whose message is written for the person at the keyboard."""


class ConfigError(AchieveError):
    """A setting that cannot work: an unknown preset, an impossible size, a missing device."""


class DivergedError(AchieveError):
    """Training that has become meaningless: gradients that are not finite."""


class RunFolderError(AchieveError):
    """A run folder or one of its files that cannot be used: unreadable, in use, another run's."""


class CheckpointError(RunFolderError):
    """A checkpoint that cannot be written or read."""


class EpisodeLogError(RunFolderError):
    """An episode log that is missing or does not hold what it should."""


class WorldFailedError(AchieveError):
    """A world that failed while it was played, with its own traceback; what was saved before is whole."""


class MissingExtraError(AchieveError):
    """An optional package that is not installed; the message names the extra to install."""
