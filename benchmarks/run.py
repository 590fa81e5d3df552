"""Measures torch_tfrecord against other readers of TFRecord files, and prints tables.

    python benchmarks/run.py                      # everything
    python benchmarks/run.py --quick              # a tenth of the data, shorter passes
    python benchmarks/run.py --jobs stream --datasets C,D --systems torch_tfrecord,tf.data

Ends with status 1 if torch_tfrecord did not run, or if any system delivered other data than was written.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import data
import report
from process import OURS, SYSTEMS, WORKERS, RefusedError, SystemProcess

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
JOBS = {"stream": ["A", "C", "C-random", "D", "E"], "random": ["A", "C"], "workers": ["C"]}

Results = dict[str, dict[str, Any]]


class Plan(argparse.Namespace):
    """What to run and for how long, from the command line."""

    quick: bool
    datasets: list[str]
    jobs: list[str]
    systems: list[str]
    rounds: int

    @property
    def seconds(self) -> dict[str, float]:
        """How long one measurement lasts: whole passes until the least is over, but never longer than the most."""
        return {"min_seconds": 0.2, "max_seconds": 0.6} if self.quick else {"min_seconds": 1.0, "max_seconds": 4.0}


def parse_arguments() -> Plan:
    def names(known: list[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            chosen = text.split(",")
            if unknown := [name for name in chosen if name not in known]:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
            return chosen

        return parse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, shorter passes, 3 rounds")
    for option, known in (("datasets", list(data.RECORDS)), ("jobs", list(JOBS)), ("systems", list(SYSTEMS))):
        parser.add_argument(f"--{option}", type=names(known), default=known, help=f"some of {','.join(known)}")
    parser.add_argument("--rounds", type=int, help="how often each system is measured (default 5, quick 3)")
    plan = parser.parse_args(namespace=Plan())
    plan.rounds = plan.rounds or (3 if plan.quick else 5)
    return plan


def wrong_sums(dataset: dict[str, Any], found: dict[str, dict[str, Any]]) -> str | None:
    """Compare what a system delivered with what was written; None where it is the same."""
    for name, column in dataset["columns"].items():
        got = found.get(name)
        if got is None:
            return f"no column {name}"
        if (got["dtype"], got["count"]) != (column["kind"], column["count"]):
            return f"{name}: {got['count']} x {got['dtype']}, expected {column['count']} x {column['kind']}"
        # Floats are added up in another order, in float64.
        same = got["total"] == column["total"] or (
            column["kind"] == "float32" and math.isclose(got["total"], column["total"], rel_tol=1e-9)
        )
        if not same:
            return f"{name}: sum {got['total']}, expected {column['total']}"
    return None


def prepare(plan: Plan, system: SystemProcess, dataset: dict[str, Any], job: str) -> dict[str, Any]:
    """Check a system's data and choose its best setting. Raises RefusedError.

    Each candidate has a pass that warms it up, and then its better one of two that count.
    """
    candidates = system.ask("settings", dataset, job)["settings"]
    wrong = wrong_sums(dataset, system.ask("sums", dataset, job, setting=candidates[0])["sums"])
    if wrong:
        raise RefusedError(f"WRONG DATA: {wrong}")
    best: dict[str, Any] = {}
    for setting in candidates:
        tries = [
            system.ask("run", dataset, job, setting=setting, skip_batches=0, **plan.seconds)
            for _ in range(3 if len(candidates) > 1 else 1)
        ]
        rate = max(report.rates(tries[1:] or tries))
        best.setdefault("tried", []).append({"setting": setting, "rate": rate})
        if rate > best.get("rate", 0):
            best |= {"rate": rate, "setting": setting}
    if best["setting"] != candidates[-1]:  # the process has the last one open; warm up the one that was chosen
        system.ask("run", dataset, job, setting=best["setting"], skip_batches=0, **plan.seconds)
    return {"crc": system.crc, "versions": system.versions, "setting": best["setting"], "tried": best["tried"]}


def watched(measure: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
    """Measure, and note which share of the machine other processes took meanwhile."""
    start, busy_before = time.perf_counter(), report.busy_seconds()
    run = measure(name)
    seconds, busy_after = time.perf_counter() - start, report.busy_seconds()
    share = None
    if busy_before is not None and busy_after is not None:
        share = max(0.0, busy_after - busy_before - run["request_cpu_seconds"]) / (seconds * (os.cpu_count() or 1))
    return run | {"other_cpu_share": share}


def rounds(plan: Plan, results: Results, measure: Callable[[str], dict[str, Any]]) -> None:
    """Measure all in turn, round by round, each round beginning with another one."""
    for number in range(plan.rounds):
        names = [name for name in results if "reason" not in results[name]]
        first = number % max(len(names), 1)
        for name in names[first:] + names[:first]:
            time.sleep(0.05)  # what the last one left running in its threads comes to rest
            try:
                results[name].setdefault("runs", []).append(watched(measure, name))
            except RefusedError as error:
                results[name] = {"reason": str(error)}


def compare_systems(plan: Plan, job: str, dataset: dict[str, Any]) -> Results:
    results: Results = {name: {} for name in plan.systems}
    with ExitStack() as stack:
        systems: dict[str, SystemProcess] = {}
        for name in plan.systems:
            try:
                systems[name] = SystemProcess(*SYSTEMS[name], RESULTS / "stderr.log")
                stack.callback(systems[name].close)
                results[name] = prepare(plan, systems[name], dataset, job)
            except RefusedError as error:
                results[name] = {"reason": str(error)}
        again = {"skip_batches": 0, **plan.seconds}
        rounds(
            plan,
            results,
            lambda name: systems[name].ask("run", dataset, job, setting=results[name]["setting"], **again),
        )
    return results


def compare_workers(plan: Plan, dataset: dict[str, Any]) -> Results:
    with ExitStack() as stack:
        try:
            system = SystemProcess(*WORKERS, RESULTS / "stderr.log")
        except RefusedError as error:
            return {"our batch": {"reason": str(error)}}
        stack.callback(system.close)
        cases = [setting["case"] for setting in system.ask("settings", dataset, "workers")["settings"]]
        results: Results = {case: {} for case in cases}

        def measure(case: str) -> dict[str, Any]:
            limits = {"min_seconds": 0.0, "max_seconds": plan.seconds["max_seconds"] / 2, "skip_batches": 20}
            return system.ask("run", dataset, "workers", setting={"case": case}, **limits)

        rounds(plan, results, measure)
    return results


def failed(job: str, results: Results) -> bool:
    """Whether ours did not run, or anyone delivered wrong data."""
    reasons = {name: result["reason"] for name, result in results.items() if "reason" in result}
    ours_missing = any("our" in name for name in reasons) if job == "workers" else OURS in reasons
    return ours_missing or any(reason.startswith("WRONG DATA") for reason in reasons.values())


def main() -> int:
    plan = parse_arguments()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "stderr.log").unlink(missing_ok=True)
    machine = report.hardware()
    print(report.hardware_text(machine), end="\n\n")
    document: dict[str, Any] = {"machine": machine, "quick": plan.quick, "rounds": plan.rounds, "comparisons": []}
    versions: dict[str, dict[str, str]] = {}
    bad = False
    for job in plan.jobs:
        for name in [name for name in JOBS[job] if name in plan.datasets]:
            dataset = data.ensure(name, HERE / "data", quick=plan.quick)
            record_bytes = dataset["payload_bytes"] / dataset["records"]
            print(f"{job} {name}: {dataset['records']:,} records of {record_bytes:,.0f} bytes\n", flush=True)
            if job == "workers":
                results = compare_workers(plan, dataset)
                print(report.worker_table(results))
            else:
                results = compare_systems(plan, job, dataset)
                print(report.rate_table(results, record_bytes))
            print(report.disturbance(results), flush=True)
            versions |= {system: result["versions"] for system, result in results.items() if "versions" in result}
            bad |= failed(job, results)
            document["comparisons"].append({"job": job, "dataset": name, "results": results})
    document["versions"] = versions
    print("versions:", json.dumps(versions))
    stamp = machine["date"].replace(":", "").split("+")[0]
    path = RESULTS / f"{stamp}{'-quick' if plan.quick else ''}.json"
    path.write_text(json.dumps(document, indent=1))
    print(f"written to {path}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
