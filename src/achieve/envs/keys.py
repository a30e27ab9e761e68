"""Which key takes which action, where a person plays: in the browser, in a terminal, in a window.

Keys have the names that browsers give them: the character, or ``Tab``, ``Enter``, ``ArrowLeft`` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Keys = Mapping[str, tuple[str, ...]]
"""The keys of each action, by its name; the first is the one to show."""

# The first of each are the keys of Crafter's own window. It takes no action where no key is pressed.
CRAFTER: Keys = {
    "noop": ("n",),
    "move_left": ("a", "ArrowLeft"),
    "move_right": ("d", "ArrowRight"),
    "move_up": ("w", "ArrowUp"),
    "move_down": ("s", "ArrowDown"),
    "do": (" ",),
    "sleep": ("Tab", "z"),
    "place_stone": ("r",),
    "place_table": ("t",),
    "place_furnace": ("f",),
    "place_plant": ("p",),
    "make_wood_pickaxe": ("1",),
    "make_stone_pickaxe": ("2",),
    "make_iron_pickaxe": ("3",),
    "make_wood_sword": ("4",),
    "make_stone_sword": ("5",),
    "make_iron_sword": ("6",),
}
# As in MiniGrid's own window, which moves as seen from the agent; a letter beside what a browser may keep for itself.
MINIGRID: Keys = {
    "left": ("ArrowLeft", "a"),
    "right": ("ArrowRight", "d"),
    "forward": ("ArrowUp", "w"),
    "pickup": ("p", "Tab", "PageUp"),
    "drop": ("o", "PageDown"),
    "toggle": (" ",),
    "done": ("n",),
}
HEIST: Keys = {
    "noop": ("n",),
    "left": ("ArrowLeft", "a"),
    "right": ("ArrowRight", "d"),
    "up": ("ArrowUp", "w"),
    "down": ("ArrowDown", "s"),
}
KNOWN: Mapping[str, Keys] = {"crafter": CRAFTER, "minigrid": MINIGRID, "heist": HEIST}
_OTHERS = "1234567890qwertyuiopasdfghjklzxcvbnm"

# SDL's numbers, for pygame.
_PYGAME = {
    "Tab": 9, "Enter": 13, "ArrowRight": 1073741903, "ArrowLeft": 1073741904, "ArrowDown": 1073741905,
    "ArrowUp": 1073741906, "PageUp": 1073741899, "PageDown": 1073741902,
}  # fmt: skip


def keys_of(env: str, actions: Sequence[str]) -> dict[str, int]:
    """Return the number of the action that each key takes. Actions of an environment of one's own are numbered."""
    known = KNOWN.get(env)
    if known is None:
        return {key: number for number, key in zip(range(len(actions)), _OTHERS, strict=False)}
    numbers = {name: number for number, name in enumerate(actions)}
    return {key: numbers[name] for name, keys in known.items() if name in numbers for key in keys}


def for_gymnasium(env: str, actions: Sequence[str]) -> dict[tuple[int, ...], int]:
    """Return the same as `gymnasium.utils.play` wants it, by pygame's numbers."""
    return {(_PYGAME.get(key) or ord(key),): action for key, action in keys_of(env, actions).items()}
