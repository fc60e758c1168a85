"""Run the tests as on other processors: other BLAS kernels, no wide vectors.

``python tests/processors.py`` runs all of them (``make processors``); arguments go on to pytest.
OpenBLAS takes the kernels that OPENBLAS_CORETYPE names, numpy leaves out what
NPY_DISABLE_CPU_FEATURES lists, numba compiles for NUMBA_CPU_NAME. Results differ in rounding, and
nothing else may.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORES = ("Prescott", "Haswell", "Zen", "SkylakeX")
WIDE = ("X86_V3", "X86_V4", "AVX2", "FMA3", "F16C", "AVX512")
PROBE = """
import numpy, scipy.linalg, threadpoolctl
print(sorted({p["architecture"] for p in threadpoolctl.threadpool_info() if "architecture" in p}))
"""


def wide_features() -> list[str]:
    """Return numpy's optional vector instructions beyond SSE that this processor has."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [
        name for name in __cpu_dispatch__ if name.startswith(WIDE) and __cpu_features__.get(name)
    ]


def settings() -> dict[str, dict[str, str]]:
    """Return the environment variables of each processor that this one can stand in for."""
    from numpy._core._multiarray_umath import __cpu_features__

    usable = [core for core in CORES if core != "SkylakeX" or __cpu_features__.get("AVX512F")]
    out = {core: {"OPENBLAS_CORETYPE": core} for core in usable}
    narrow = {"NPY_DISABLE_CPU_FEATURES": " ".join(wide_features()), "NUMBA_CPU_NAME": "generic"}
    out["no AVX2"] = {**narrow, "OPENBLAS_CORETYPE": "Prescott"}
    return out


def main(arguments: list[str]) -> int:
    """Run pytest in each setting; print a line each and return how many failed."""
    lines, failed, seen = [], 0, {}
    for name, variables in settings().items():
        environment, started = {**os.environ, **variables}, time.perf_counter()
        probe = subprocess.run(
            [sys.executable, "-c", PROBE],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        kernels = probe.stdout.strip()
        print(f"== {name}: {variables}, BLAS kernels {kernels}", flush=True)
        alike = seen.setdefault((kernels, variables.get("NUMBA_CPU_NAME")), name)
        if alike != name:  # this build of OpenBLAS has none of its own
            lines.append(f"{name:10} has the kernels of {alike}")
            continue
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", *arguments],
            env=environment,
            check=False,
            cwd=ROOT,
        )
        failed += done.returncode != 0
        verdict = "passed" if done.returncode == 0 else "FAILED"
        lines.append(f"{name:10} {verdict} in {(time.perf_counter() - started) / 60:.0f} minutes")
    print("\n".join(lines))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
