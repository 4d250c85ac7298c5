"""What the user wants loaded: the TARGET grammar, taking a loader apart, built-in workloads.

``build``, ``loader``, ``parts`` and ``weighing`` import torch, and belong in a trial's processes;
the others, but for a built-in's own module, don't.
"""
