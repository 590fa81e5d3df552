"""The driver's end of a system: a process that gets one request at a time."""

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import envs

HERE = Path(__file__).resolve().parent
ANSWER_SECONDS = 600  # a system that says nothing for so long is ended

# name of a system: (environment, script)
SYSTEMS = {
    "torch_tfrecord": ("ours", "ours.py"),
    "tf.data": ("tf", "tfdata.py"),
    "DALI (CPU)": ("dali", "dali.py"),
    "tfrecord": ("tfrecord", "tfrecord_package.py"),
    "protobuf loop": ("protobuf", "protobuf_loop.py"),
}
OURS = "torch_tfrecord"
WORKERS = ("ours", "workers.py")


class RefusedError(Exception):
    """A system cannot or did not do what it was asked; the text says why."""


class SystemProcess:
    """A running system. Use it as a context manager; raises RefusedError where it does not start."""

    def __init__(self, environment: str, script: str, log: Path) -> None:
        try:
            python = envs.python_of(environment)
        except envs.UnavailableError as error:
            raise RefusedError(str(error)) from error
        variables = dict(os.environ)
        if environment == "ours":
            variables["PYTHONPATH"] = str(HERE.parent)  # this checkout is what is measured
        self.log = log
        with log.open("a") as stderr:
            self.process = subprocess.Popen(
                [python, HERE / "systems" / script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=variables,
            )
        try:
            hello = self.receive()
        except RefusedError:
            self.close()
            raise
        self.versions: dict[str, str] = hello["versions"]
        self.crc: str = hello["crc"]

    def ask(self, command: str, dataset: dict[str, Any], job: str, **request: Any) -> dict[str, Any]:
        """Send one request and wait for the answer. Raises RefusedError."""
        line = json.dumps({"command": command, "dataset": dataset, "job": job, **request})
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError as error:
            raise RefusedError(f"the process has ended; see {self.log}") from error
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """Wait for one answer. Raises RefusedError where it is a refusal or does not come."""
        assert self.process.stdout is not None
        timer = threading.Timer(ANSWER_SECONDS, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            raise RefusedError(f"the process ended with status {self.process.wait()}; see {self.log}")
        reply: dict[str, Any] = json.loads(line)
        for kind in ("unsupported", "error"):
            if kind in reply:
                # An error that comes out of a DataLoader's worker carries a traceback, which ends with what happened.
                last_line = reply[kind].strip().splitlines()[-1]
                raise RefusedError(("failed: " if kind == "error" else "") + last_line)
        return reply

    def close(self) -> None:
        """End the process; it leaves by itself when its input ends."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
