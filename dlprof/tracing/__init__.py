"""Where the time of one DataLoader's batches goes, on stock torch.

``tracer`` puts hooks on one loader while its iterator is made: a multiprocessing context whose
queues stamp what passes (``queues``), and a ``worker_init_fn`` that in the worker only times the
fetcher (``stamper``, ``chains``). Stamps travel to main with the batch itself, inside its pickle;
main adds its own (``recorder``) and keeps the latest rows (``trace``). ``explain`` is pure: from a
trace and a window to records; it imports no torch.
"""
