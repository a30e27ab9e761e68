"""Lock-step evidence that our Crafter is the original game.

- `reference`: the installed `crafter` package, made reproducible by one change.
- `lockstep`: plays both side by side and compares everything they return.
- `events`: watches the reference and says what happened in it.
- `players`: random play. `scripted`: a player with goals, from the public infos alone, built on
  `situation` (what it knows), `navigation` (ways) and `craft` (skills); `repertoire`: its plays.
- `recordings`: action sequences of the scripted players, and the command that makes them.
"""
