"""Host arrays in; arrays on all local devices out. The only file that counts devices."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxtag.config import ConfigError

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Devices:
    """A mesh of one axis, ``data``, over which the rows of every batch are split."""

    mesh: Mesh

    @property
    def rows(self) -> NamedSharding:
        """Sharding of an array whose first axis are the rows of a batch."""
        return NamedSharding(self.mesh, PartitionSpec("data"))

    @property
    def whole(self) -> NamedSharding:
        """Sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def shard(self, batch: T) -> T:
        """Place a tree of host arrays, rows split over the devices."""
        return jax.device_put(batch, self.rows)

    def replicate(self, tree: T) -> T:
        """Place a copy of a tree on every device; the copy may be donated safely."""
        return jax.device_put(
            jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree), self.whole
        )

    def describe(self) -> str:
        """Number and kind of the devices, for people."""
        devices = self.mesh.devices.ravel()
        return f"{devices.size} × {devices[0].device_kind}"


def local_devices(row_multiple: int, count: int | None = None) -> Devices:
    """Take all local devices, or the first ``count``.

    Raises ``ConfigError`` where their number does not divide ``row_multiple``, since the rows of
    a batch, a multiple of that, could then not be split evenly.
    """
    devices = jax.local_devices()[:count]
    if row_multiple % len(devices):
        raise ConfigError(
            f"data.row-multiple: expected a multiple of the {len(devices)} devices, "
            f"found {row_multiple}"
        )
    return Devices(jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices))


class _NothingLeft(Exception):
    """The end of the items, told from a ``StopIteration`` that escapes from ``place``."""


def prefetch(items: Iterable[S], place: Callable[[S], T], *, ahead: int = 2) -> Iterator[T]:
    """Apply ``place`` to each item in one thread, up to ``ahead`` items before they are asked for.

    Order is kept, and an exception in the thread is raised here.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
    stop = threading.Event()

    def offer(item: tuple[T | None, BaseException | None]) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def work() -> None:
        try:
            for item in items:
                if stop.is_set():
                    return
                offer((place(item), None))
            offer((None, _NothingLeft()))
        except BaseException as error:  # handed to the reader, who raises it
            offer((None, error))

    thread = threading.Thread(target=work, daemon=True, name="prefetch")
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, _NothingLeft):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
