"""One virtual environment for each peer, so that no peer can disturb another or the library's own environment.

They are made on first use under ``benchmarks/.venvs`` with pip. ``BENCH_VENV_TF=/some/venv`` (or ``_DALI``,
``_TFRECORD``, ``_PROTOBUF``) uses an environment that is already there instead.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE.parent / "constraints.txt"

# The peers are pinned, since their settings here were chosen for these versions; what they need is not.
REQUIREMENTS = {
    "tf": ["tensorflow-cpu==2.21.0"],
    "dali": ["nvidia-dali-cuda120==2.4.0", "numpy"],
    "tfrecord": ["tfrecord==1.14.6", "torch", "numpy"],
    "protobuf": ["protobuf>=5", "numpy"],
}


class UnavailableError(Exception):
    """An environment cannot be made here; the text says why."""


def python_of(name: str) -> Path:
    """Return the interpreter of an environment, after making it where needed. Raises UnavailableError."""
    if name == "ours":
        return Path(sys.executable)
    override = os.environ.get(f"BENCH_VENV_{name.upper()}")
    if override:
        python = Path(override) / "bin" / "python"
        if not python.exists():
            raise UnavailableError(f"BENCH_VENV_{name.upper()}: there is no {python}")
        return python
    folder = HERE / ".venvs" / name
    wanted = "\n".join(REQUIREMENTS[name])
    marker = folder / "installed.txt"  # written last: says that the environment is whole
    if not marker.exists() or marker.read_text() != wanted:
        print(f"making the environment of {name} (once)", flush=True)
        install(folder, REQUIREMENTS[name])
        marker.write_text(wanted)
    return folder / "bin" / "python"


def install(folder: Path, requirements: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS)]
    done = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise UnavailableError(f"not installed: {errors[-1] if errors else done.stderr[-200:]}")
