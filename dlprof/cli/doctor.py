"""``dlprof doctor``: what on this machine commonly breaks data loading."""
# ruff: noqa: PLC0415 - imported when the command runs, so that --help answers at once

from __future__ import annotations

import platform

from dlprof.cli import options, streams


def doctor(
    *, as_json: options.Json = False, quiet: options.Quiet = False, verbose: options.Verbose = False
) -> None:
    """Check what on this machine commonly breaks data loading; paste the result into an issue.

    It looks at shared memory, limits, cores, versions, the GPU's driver and the clock, and loads no
    data. It ends with 0 whatever it finds: scripts read "state" in --json.
    """
    del quiet, verbose  # taken as by every command; there is no progress to hide or lengthen
    import dlprof
    from dlprof.machine.doctor import examine, look
    from dlprof.report.doctor import doctor_document, doctor_report

    checks = examine(look())
    system = (
        f"dlprof {dlprof.__version__} on {platform.system()} {platform.release()}"
        f" {platform.machine()}"
    )
    if as_json:
        streams.write_result(doctor_document(checks, system))
    else:
        streams.print_result(doctor_report(checks, system))
