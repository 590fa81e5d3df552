"""Run by a Python that has TensorFlow: executes blocks of code in one namespace, and gives back each one's ``result``.

From standard input: a JSON list of ``[file, line, code]``. To the file that the argument names: a JSON list of results.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import types
from typing import Any


def run(blocks: list[tuple[str, int, str]]) -> list[Any]:
    module = types.ModuleType("document")
    sys.modules[module.__name__] = module
    scope = vars(module)
    results = []
    for file, line, code in blocks:
        scope.pop("result", None)
        name, text = f"{file}:{line}", "\n" * line + code
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # AutoGraph reads the source
        exec(compile(text, name, "exec"), scope)
        results.append(scope.get("result"))
    return results


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before TensorFlow is imported
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    answer = json.dumps(run(json.load(sys.stdin)))
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(answer)
