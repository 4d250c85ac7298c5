"""What the user wants loaded: the TARGET grammar, taking a loader apart, built-in workloads.

``grammar``, ``arguments``, ``importing``, ``files``, ``counting`` and ``builtin`` import no torch;
``build``, ``loader``, ``parts``, ``describe`` and ``epoch`` do, and belong in a trial's processes.
"""
