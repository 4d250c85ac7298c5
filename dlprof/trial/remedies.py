"""What to do about each fault: the hints, one sentence each, that failures show."""

from __future__ import annotations

LESS_MEMORY = (
    "Use fewer workers, a smaller prefetch_factor or batch_size, or keep the dataset's index in "
    "tensors or arrays instead of Python objects."
)
FREE_MEMORY = (
    "Free memory on this machine, or raise what this session may use (ulimit -v, docker run "
    "--memory)."
)
MORE_SHM = (
    "Use fewer workers, a smaller prefetch_factor or batch_size, or give /dev/shm more room "
    "(docker run --shm-size)."
)
MORE_FILES = "Raise the limit (ulimit -n), or try --sharing-strategy file_system."
MORE_FILES_HERE = "Raise the limit of open files (ulimit -n), or end what holds so many."
FREE_DISK = "Free room where temporary files are, or name another place for them (TMPDIR)."
PICKLABLE = (
    "Define it at the top level of a module (no lambda, no nested function, no open file), or use "
    "--start-method fork."
)
SENDABLE_BATCH = (
    "Return tensors without a gradient, numbers, text, containers of them and objects of "
    "classes at the top level of a module; no open file, lock, generator or lambda."
)
ALIKE = (
    "Make the samples of a batch alike in keys, shapes and lengths. Or give a collate_fn that "
    "pads them or keeps them in a list."
)
COLLATABLE = "Return tensors, arrays, numbers, text or containers of them, or give a collate_fn."
MORE_PROCESSES = (
    "The system starts no more processes here: use fewer workers, or raise the limit "
    "(ulimit -u, docker run --pids-limit)."
)
UNLOCKED = (
    "Nothing is being computed. Look for a lock held, or a thread pool used, before the workers "
    "were forked: --start-method spawn avoids both. Or storage or a server doesn't answer."
)
MORE_TIME = "Raise --budget or --timeout if batches are that slow; otherwise that line doesn't end."
NO_CUDA = "Keep CUDA out of the dataset, or use --start-method spawn."
DEVICE_FULL = "The device's memory is full: dlprof machine shows who is on it; or use --device cpu."
NOT_PINNED = "Only memory of the CPU can be pinned: use --pin-memory off, or yield CPU tensors."
OWN_TIMEOUT = "The loader's own timeout ran out: raise it, or find what makes a batch so slow."
TOO_LONG = "An IndexError may mean that __len__ promises more samples than there are."
ENDED = "The dataset, or a library that it uses, ended its own process."
CRASHED = "Native code under the dataset crashed: run it at --num-workers 0 under faulthandler."
BY_SIGNAL = {
    "SIGKILL": "Something killed it, often the kernel's out-of-memory killer: use fewer workers.",
    "SIGBUS": "A file that the dataset maps (a memmap) was cut off during the trial, or "
    "/dev/shm is full.",
    "SIGTERM": "Another program ended it, such as a batch system whose time is over.",
    "SIGXCPU": "A limit of CPU time ended it (ulimit -t): raise it, or measure less.",
    "SIGALRM": "The dataset, or a library that it uses, set an alarm and does not catch it.",
}
"""By the name of the signal that ended a worker, or the process that loads."""
