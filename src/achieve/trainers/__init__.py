"""Everything a run consists of, for each learner: what `achieve.train` sets to work.

- `base`: environments, seeds, time, and a state that can be saved and loaded.
- `ppo`: PPO and its auxiliary phase.
- `qrdqn`: QR-DQN, its replay and its auxiliary phase.
- `warm` and `rehearsal`: compiling the GPU kernels of a run before it needs them.
"""
