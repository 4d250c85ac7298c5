"""What would happen: predicted from the costs of batches, pure and without numpy.

A calibration (``fit``) holds what batches cost on one machine; ``predict_all`` says what any
configurations would give under any conditions, by a recursion over batches (``maxplus``). The
``bounds`` explain it.
"""
