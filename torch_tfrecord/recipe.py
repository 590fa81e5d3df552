"""What is made of records: features, transforms, and the order in which they act."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_tfrecord.batch import Items, Rows, transformed
from torch_tfrecord.decode import decode, read_payloads
from torch_tfrecord.drawing import Draw
from torch_tfrecord.plan import Plan, compile_features, record_plan
from torch_tfrecord.randomness import record_generator, wants_generator
from torch_tfrecord.reading import Ids, Located


class Recipe:
    """Makes items of records. Holds nothing of where they lie, so it pickles to specs and functions.

    Args:
        features: Specs by column name; None: records stay ``bytes``; or a callable ``bytes -> Any``.
        transform: Called with each record.
        batch_transform: Called with each batch before that.

    Raises:
        TypeError: ``features`` is something else.
        ValueError: ``features`` is empty.
    """

    def __init__(
        self,
        features: Mapping[str, Any] | Callable[[bytes], Any] | None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if not (features is None or callable(features) or isinstance(features, Mapping)):
            raise TypeError(f"features is {features!r}, not a dict of specs, a callable or None")
        self.features = dict(features) if isinstance(features, Mapping) else features
        self.transform = transform
        self.batch_transform = batch_transform
        self.wants_generator = wants_generator(transform)
        self.plan = self._compile()

    def _compile(self) -> Plan:
        return compile_features(self.features) if isinstance(self.features, dict) else record_plan()

    @property
    def is_native(self) -> bool:
        """Whether the core makes whole batches without any Python: no images, transforms or parsers of the user's."""
        plain = isinstance(self.features, dict) and self.transform is None and self.batch_transform is None
        return plain and not self.plan.images

    def items(self, located: Located, draw: Draw, num_threads: int | None = None) -> Any:
        """The records of a batch, before they are collated: a `Rows` or a list.

        Args:
            located: The records.
            draw: How they were drawn.
            num_threads: Native threads; None: ``torch.get_num_threads()``.
        """
        try:
            return self._items(located, draw, num_threads)
        except StopIteration as error:  # in an iterator it would end the pass as if there were no more records
            raise RuntimeError("StopIteration was raised where a batch was made, by a transform or a parser") from error

    def _items(self, located: Located, draw: Draw, num_threads: int | None) -> Any:
        ids, records, origin = located
        transform = self._transform_for(ids, draw)
        if not isinstance(self.features, dict):
            items: Any = records if isinstance(records, list) else read_payloads(records, origin, num_threads)
            if self.features is not None:
                items = Items(self.features(payload) for payload in items)
            if self.batch_transform is not None:
                items = self.batch_transform(items)
            return items if transform is None else [transform(i, item) for i, item in enumerate(items)]
        batch: Any = decode(self.plan, records, origin, ids, num_threads)
        batch.mark(valid=draw.valid)
        if self.batch_transform is not None:
            batch = self.batch_transform(batch)
        if isinstance(batch, torch.Tensor):  # by batch_transform; torch's default_collate stacks lists only
            return list(batch) if transform is None else [transform(i, row) for i, row in enumerate(batch)]
        rows = Rows(batch, self.features)
        if transform is None:
            return rows
        return [transformed(rows[i], functools.partial(transform, i)) for i in range(len(rows))]

    def _transform_for(self, ids: Ids, draw: Draw) -> Callable[[int, Any], Any] | None:
        """The transform as a function of a row's number and the row."""
        transform = self.transform
        if transform is None:
            return None
        if not self.wants_generator:
            return lambda _, row: transform(row)
        return lambda i, row: transform(row, generator=record_generator(draw.seed, draw.epoch, int(ids[i])))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "plan"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.plan = self._compile()
