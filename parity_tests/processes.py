"""A test file in; what it prints as JSON when run as a program of its own out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax


def printed_by(file: str, *arguments: str, devices: int = 1) -> Any:
    """Run a test file with so many fake devices, and read the JSON that it prints."""
    root = Path(__file__).resolve().parents[1]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(root), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, file, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
