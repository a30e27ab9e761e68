"""What a run on a GPU computes in place of plain code: Triton kernels, and the functions that launch them.

The plain code is the definition. The head of each file names its plain twin; a table of all is in
`docs/architecture.md`. `available.py` decides which of them are in force for a device and a network.
`tests/nn` runs the kernels against their twins under Triton's interpreter, `tests/gpu` compiled, on a GPU.

Triton may be missing. Nothing is imported here, and outside this package every file but `available.py` is imported only
where its kernels are used.
"""
