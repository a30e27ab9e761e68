"""The paper's experiments, run from one command.

What is inside, in the order it is used:

- `experiments`: which runs each table and figure needs;
- `plan`: which of them are done, begun or missing in a folder, and how long the rest will take (`estimates`);
- `scheduler`: runs them here, several on each GPU (`devices`, `mps`), as many as is fastest (`jobs`), each a process of
  its own (`child`);
- `cluster`: runs them on a Ray cluster instead;
- `board`: the live table, fed from the runs' own logs (`watch`);
- `after`: the analyses that need finished runs, and the results.
"""
