"""Turns measurements into tables, and says what they were measured on."""

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

from process import OURS

Runs = list[dict[str, Any]]


def hardware() -> dict[str, Any]:
    """The machine, in words that go with the results."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_average_1min": os.getloadavg()[0],
        "commit": commit,
    }


def hardware_text(machine: dict[str, Any]) -> str:
    gibibytes = machine["memory_bytes"] / 2**30
    lines = [
        f"{machine['date']}  commit {machine['commit'] or '?'}  Python {machine['python']}",
        f"{machine['cores']} cores of {machine['cpu']}, {gibibytes:.0f} GiB, {machine['platform']}",
    ]
    return "\n".join(lines)


def busy_seconds() -> float | None:
    """CPU time that all processes of the machine, and its neighbours on the host, have taken; None if not known."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def disturbance(results: dict[str, dict[str, Any]]) -> str:
    """A warning where other processes took part of the machine while it was measured, else an empty string."""
    shares = [run["other_cpu_share"] for result in results.values() for run in result.get("runs", [])]
    known = [share for share in shares if share is not None]
    if not known or median(known) < 0.05:
        return ""
    return f"\n  NOTE: other processes took {median(known):.0%} of the machine meanwhile: do not quote these figures\n"


def rates(runs: Runs) -> list[float]:
    return [run["records"] / run["seconds"] for run in runs]


def lined_up(rows: list[list[str]]) -> str:
    """Rows as a table: the first and the last column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows if len(row) > i + 1 or i == 0) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        if len(row) == 2:  # a system that did not run, and why
            lines.append(f"  {row[0]:<{widths[0]}}  {row[1]}")
            continue
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths[1:], strict=True)]
        lines.append("  " + "  ".join([*cells, row[-1]]))
    return "\n".join(lines)


def setting_text(setting: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in setting.items()) or "-"


def rate_table(results: dict[str, dict[str, Any]], payload_bytes_per_record: float) -> str:
    """Medians over the rounds, one system a row."""
    medians = {name: median(rates(result["runs"])) for name, result in results.items() if "runs" in result}
    peers = [rate for name, rate in medians.items() if name != OURS]
    header = ["system", "CRC", "records/s", "min..max", "x best peer", "MB/s", "CPU us/rec"]
    rows = [[*header, "first ms", "setup ms", "peak MB", "setting"]]
    for name, result in results.items():
        if "runs" not in result:
            rows.append([name, result["reason"]])
            continue
        runs, all_rates = result["runs"], rates(result["runs"])
        rows.append(
            [
                name,
                result["crc"],
                f"{medians[name]:,.0f}",
                f"{min(all_rates):,.0f}..{max(all_rates):,.0f}",
                f"{medians[name] / max(peers):.2f}" if peers else "-",
                f"{medians[name] * payload_bytes_per_record / 1e6:,.0f}",
                f"{median(run['cpu_seconds'] / run['records'] for run in runs) * 1e6:.2f}",
                f"{median(run['first_batch_seconds'] for run in runs) * 1e3:.1f}",
                f"{runs[0]['setup_seconds'] * 1e3:.0f}",
                f"{max(run['peak_rss'] for run in runs) / 1e6:,.0f}",
                setting_text(result["setting"]),
            ]
        )
    return lined_up(rows)


def worker_table(results: dict[str, dict[str, Any]]) -> str:
    """Microseconds a batch, one case a row."""
    rows = [["case", "us/batch", "min..max", "x one tensor", ""]]
    least = None
    for case, result in results.items():
        if "runs" not in result:
            rows.append([case, result["reason"]])
            continue
        runs = result["runs"]
        times = [run["seconds"] / run["batches"] * 1e6 for run in runs]
        least = least or median(times)
        spread = f"{min(times):,.0f}..{max(times):,.0f}"
        rows.append([case, f"{median(times):,.0f}", spread, f"{median(times) / least:.2f}", ""])
    return lined_up(rows)
