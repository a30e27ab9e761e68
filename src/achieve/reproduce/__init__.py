"""Many runs from one command: the paper's experiments, several seeds, sweeps.

What is inside, in the order it is used:

- `experiments`: which runs each table and figure of the paper needs;
- `plan`: which runs of a folder are done, begun or missing, and how long the rest will take (`estimates`);
- `executor`: makes them, each a process of its own (`process`), one after the other or through Ray (`cluster`), on the
  machine's GPUs (`gpus`), which several can share at the same moment (`mps`);
- `live_table`: how far each run is, read off the end of its own log (`tail_metrics`);
- `analyses`: what needs finished runs.
"""
