"""``dlprof doctor``: what on this machine commonly breaks data loading."""

from __future__ import annotations

import platform

from dlprof.cli import options


@options.command(kind="Machine", short="--json", examples=("dlprof doctor",))
def doctor(asked: options.Asked) -> None:
    """Check what commonly breaks data loading here.

    Paste the result into an issue.

    It looks at shared memory, limits, cores, load, versions, the GPU's driver and the clock, and
    loads no data. It ends with 0 whatever it finds: scripts read "state" in --json.
    """
    import dlprof
    from dlprof.machine.doctor import examine, look
    from dlprof.report.documents import json_document
    from dlprof.report.machine import doctor_report

    checks = examine(look())
    system = (
        f"dlprof {dlprof.__version__} on {platform.system()} {platform.release()}"
        f" {platform.machine()}"
    )
    asked.show(
        lambda: json_document(system=system, checks=checks), lambda: doctor_report(checks, system)
    )
