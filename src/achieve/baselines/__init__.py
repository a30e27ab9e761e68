"""Agents of other libraries that `achieve baseline` trains here, each by its own library in a process of its own.

A baseline owns its run: it opens the folder, starts the library, whose environment joins the run, shows how far it is,
and ends with a summary. `dreamer` is DreamerV3.
"""
