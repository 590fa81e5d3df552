"""The count of epochs that a stream shares with ``DataLoader`` workers: as real workers use it."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torch_tfrecord.epochs import Begun, Board

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than there are cores


class Probe(IterableDataset[Any]):
    """Says which passes its workers begin: one item for each worker."""

    def __init__(self, board: Board, passes: int = 1) -> None:
        self.board = board
        self.passes = passes

    def __iter__(self) -> Iterator[tuple[int, list[Begun]]]:
        worker = get_worker_info()
        assert worker is not None
        return iter([(worker.id, [self.board.begin() for _ in range(self.passes)])])


def loader_of(board: Board, num_workers: int = 3, passes: int = 1, **options: Any) -> DataLoader[Any]:
    return DataLoader(Probe(board, passes), batch_size=None, num_workers=num_workers, **options)


def all_passes(loader: DataLoader[Any]) -> list[Begun]:
    """The passes that all workers say they have begun."""
    found = list(loader)
    assert [worker for worker, _ in found] == list(range(loader.num_workers))
    assert [passes for _, passes in found] == [found[0][1]] * loader.num_workers
    return [Begun(*begun) for begun in found[0][1]]


def one_pass(loader: DataLoader[Any]) -> Begun:
    (begun,) = all_passes(loader)
    return begun


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- passes of workers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_each_pass_is_the_next_epoch(persistent: bool) -> None:
    board = Board(7)
    loader = loader_of(board, persistent_workers=persistent)
    assert [one_pass(loader) for _ in range(3)] == [Begun(7, epoch, 0) for epoch in range(3)]
    assert (board.announced, board.newest, board[0], board[1]) == (3, (2, 0), 3, 0)
    board[:] = 9, 5
    board.seed = -1
    assert [one_pass(loader) for _ in range(2)] == [Begun(-1, 9, 5), Begun(-1, 10, 0)]
    assert board.newest == (10, 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(method: str) -> None:
    multiprocessing.set_forkserver_preload(["torch_tfrecord.epochs"])  # spares each worker the import of torch
    board = Board(1)
    loader = loader_of(board, 2, multiprocessing_context=method)
    torch.manual_seed(0)
    assert one_pass(loader) == Begun(1, 0, 0)
    board[:] = 7, 3
    torch.manual_seed(0)
    assert one_pass(loader) == Begun(1, 7, 3)
    assert (board.announced, board.newest, board[0]) == (2, (7, 3), 8)


def test_equal_seeds_of_pools_do_not_confuse_passes() -> None:
    board = Board(0)
    loader = loader_of(board)
    for epoch in range(3):
        torch.manual_seed(0)
        assert one_pass(loader).epoch == epoch
    epochs = []
    for _ in range(3):  # in threads that may get each other's identity
        torch.manual_seed(0)
        thread = threading.Thread(target=lambda: epochs.append(one_pass(loader).epoch))
        thread.start()
        thread.join()
    assert epochs == [3, 4, 5]


def delay_all_but_the_first(worker: int) -> None:
    time.sleep(0.3 * worker)


def test_a_pool_that_is_closed_before_all_its_workers_began() -> None:
    board = Board(0)
    torch.manual_seed(0)
    begun = iter(loader_of(board, 2, worker_init_fn=delay_all_but_the_first))
    assert next(begun) == [0, [Begun(0, 0, 0)]]
    del begun
    torch.manual_seed(0)
    assert one_pass(loader_of(board, 2)).epoch == 1


def test_the_first_worker_may_be_the_last_to_begin() -> None:
    board = Board(0)
    loader = loader_of(board, worker_init_fn=delay_all_but_the_last)
    assert [one_pass(loader).epoch for _ in range(2)] == [0, 1]


def delay_all_but_the_last(worker: int) -> None:
    time.sleep(0.1 * (2 - worker))


def test_pools_that_threads_start_at_the_same_time() -> None:
    board = Board(0)
    epochs: list[int] = []
    barrier = threading.Barrier(3)

    def read(num_workers: int) -> None:
        for _ in range(4):
            barrier.wait()
            epochs.append(one_pass(loader_of(board, num_workers)).epoch)

    threads = [threading.Thread(target=read, args=(num_workers,)) for num_workers in (2, 3, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs) == list(range(12))


def test_no_two_passes_are_given_one_epoch() -> None:
    board = Board(0)
    at_once = partial(wait_until, time.time() + 0.5)
    loaders = [loader_of(board, 1, passes=500, worker_init_fn=at_once) for _ in range(2)]
    (first, second), *rest = list(zip(*loaders, strict=True))
    assert not rest
    assert sorted(begun[1] for _, passes in (first, second) for begun in passes) == list(range(1000))


def wait_until(moment: float, _: int) -> None:
    time.sleep(max(moment - time.time(), 0))


def test_workers_that_begin_many_passes_at_their_own_speed() -> None:
    board = Board(0)
    found = all_passes(loader_of(board, 2, passes=1000, worker_init_fn=delay_all_but_the_first))
    assert found == [Begun(0, epoch, 0) for epoch in range(1000)]


def test_a_worker_that_is_killed_leaves_the_board_unlocked() -> None:
    board = Board(0)
    child = os.fork()
    if not child:
        with board._locked():
            os.kill(os.getpid(), signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    board[:] = 4, 0
    assert one_pass(loader_of(board, 2)).epoch == 4


# --- the board itself ---------------------------------------------------------------------------------------------------


def test_resuming_counts_as_a_pass() -> None:
    board = Board(3)
    board.resume(Begun(8, 5, 20))
    assert (board.seed, board.newest, board[0], board[1], board.announced) == (8, (5, 20), 6, 0, 1)


@pytest.mark.parametrize("seed", [0, -1, 2**62, 2**128 + 5, -(2**255), 2**255 - 1])
def test_seeds(seed: int) -> None:
    assert Board(seed).seed == pickle.loads(pickle.dumps(Board(seed))).seed == seed


@pytest.mark.parametrize("seed", [2**255, -(2**255) - 1])
def test_seeds_out_of_range(seed: int) -> None:
    with pytest.raises(ValueError, match=r"seed is -?[0-9]+, and must be in"):
        Board(seed)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda board: pickle.loads(pickle.dumps(board))])
def test_copies_go_their_own_way(duplicate: Any) -> None:
    board = Board(5)
    board[:] = 4, 2
    other = duplicate(board)
    assert (other.seed, other[0], other[1]) == (5, 4, 2)
    other[:] = 9, 9
    board.seed = 6
    assert (other.seed, other[0], other[1]) == (5, 9, 9)
    assert (board.seed, board[0], board[1]) == (6, 4, 2)
    assert one_pass(loader_of(other, 2)) == Begun(5, 9, 9)
    assert (board.announced, board[0]) == (0, 4)


def check_copy(board: Board) -> None:
    assert (board.seed, board[0], board[1]) == (5, 4, 2)
    board[:] = 9, 9
    assert one_pass(loader_of(board, 2, multiprocessing_context="fork")) == Begun(5, 9, 9)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_in_another_process_that_writes_it_it_is_a_copy(method: str) -> None:
    board = Board(5)
    board[:] = 4, 2
    process = multiprocessing.get_context(method).Process(target=check_copy, args=(board,))  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (board.announced, board[0], board[1]) == (0, 4, 2)


def test_boards_where_files_need_a_name_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    board = Board(2)
    assert [one_pass(loader_of(board, 2)) for _ in range(2)] == [Begun(2, 0, 0), Begun(2, 1, 0)]


def test_boards_leave_no_descriptors() -> None:
    gc.collect()  # what other tests left
    before = sorted(os.listdir("/dev/fd"))
    for _ in range(50):
        board = copy.deepcopy(Board(0))
        board[:] = 1, 1
    del board
    assert sorted(os.listdir("/dev/fd")) == before
