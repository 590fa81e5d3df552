"""``tfrecord-index schema``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from index_tools import EXIT_OK
from index_tools.show import is_index
from index_tools.text import write_json, write_lines
from torch_tfrecord.dtypes import name_of
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_file import open_regular
from torch_tfrecord.infer import infer_schema
from torch_tfrecord.paths import expand_paths
from torch_tfrecord.schema import FixedLenFeature

if TYPE_CHECKING:
    import argparse

    from torch_tfrecord.schema import Feature


def schema(options: argparse.Namespace) -> int:
    """Find the specs that read files."""
    listed = (RecordIndex.open(path).paths if is_index(path) else expand_paths(path) for path in options.paths)
    paths = [name for names in listed for name in names]
    for path in paths:
        os.close(open_regular(path, "a TFRecord file"))  # a pipe would be waited for
    found = infer_schema(paths, max_records=options.max_records)
    if options.json:
        write_json({"features": [_as_document(name, spec) for name, spec in found.items()]})
    else:
        code = f"import torch\n\nimport torch_tfrecord as tfr\n\nfeatures = {found}"
        write_lines(code.split("\n"))
    return EXIT_OK


def _as_document(name: str, spec: Feature) -> dict[str, Any]:
    kind = {"name": name, "spec": type(spec).__name__, "dtype": name_of(spec.dtype).removeprefix("torch.")}
    return {**kind, "shape": list(spec.shape)} if isinstance(spec, FixedLenFeature) else kind
