"""Reliability: runs that are killed, inputs that are wrong, and the original game, all by the thousand.

    python benchmarks/reliability.py all                1,000 kills, 1,000,000 inputs, 200,000 steps
    python benchmarks/reliability.py kill --count 50    fewer, of one part
    python benchmarks/reliability.py again kill ID      one case once more, by the id a failure is reported under

- `kill`: whole runs in forked processes that are killed at a chosen file operation or at any moment, called again until
  they are complete, and compared with a run that was left alone. An id names learner, stage, seed and aim:
  `ppo.fresh.3@rename:run/summary.json#1` is PPO from an empty folder, killed just before summary.json is renamed into
  place for the first time; `...@write:run/episodes.jsonl#2+half` dies when half of the second write has been done;
  `...@time:0.5` is killed by another process half way through. The seed decides whether and when it is killed again.
- `trace`: how a process numbers the file operations in its run folder, and ends itself at one of them.
- `fuzz`: actions, buffers, states, weights, checkpoints and configs that are wrong in every way that comes to mind.
  An id is `states:0:1234`: kind, seed, number of the input. An input is made from these alone; environments go on from
  one input to the next, so a case is repeated from the beginning of its block.
- `values`: what the wrong inputs are made of.
- `lockstep`: the original Crafter and ours side by side, on seeds of the day. An id is `default:0:17`.
- `forks`: processes by the hundred, from one in which everything is imported.
- `quick`: the small share of each part that the tests run, and the same with something broken on purpose.

Each part returns a `Tally`.
"""
