"""Procgen Heist in hard mode: open the locks, take the gem.

- `vec.HeistVecEnv`: the vector environment, with the reward of 2 per lock and 10 for the gem.
- `games`: many games of the ``procgen`` package, each with a seed of its own.
- `locks`: notices opened locks, in the pixels.
- `state`: reads the states that Procgen saves.

``make heist`` installs Procgen; nothing here is imported before it is needed.
"""
