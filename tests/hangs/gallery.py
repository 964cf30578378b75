"""Programs that hang, each in its own way: `slipway run gallery.py NAME`. Nothing in them is made for Slipway.

In each function the lines that the culprit may stand in say `# here`, and the decorator which rank that is; None where no rank is to
blame more than another. test_hangs.py and `make hangs` compare what is told with that.
"""

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CASES = {}
FOREVER = 100_000
RANK = int(os.environ["RANK"])
X = torch.ones(4)


def case(culprit, world=2, group=True):
    def keep(function):
        CASES[function.__name__] = function, culprit, world, group
        return function

    return keep


def train(steps):
    for _ in range(steps):
        dist.all_reduce(X)


@case(1)
def skipped_collective():
    train(55)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    train(1)


@case(0)
def rank_0_saves_for_ever():
    train(3)
    if RANK == 0:
        time.sleep(FOREVER)  # here
    train(1)


@case(2, world=3)
def one_of_three():
    train(7)
    if RANK == 2:
        time.sleep(FOREVER)  # here
    train(1)


@case(1)
def uneven_batches():
    train(10 if RANK else 11)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.barrier()


@case(1)
def asks_on_one_rank():
    reader, _writer = os.pipe()
    sys.stdin = os.fdopen(reader)
    train(2)
    if RANK == 1:
        input("go on? ")  # here
    train(1)


@case(1)
def lock_taken_twice():
    lock = threading.Lock()
    train(2)
    if RANK == 1:
        lock.acquire()
        lock.acquire()  # here
    train(1)


class Stuck(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if RANK == 1 and index >= 4:
            time.sleep(FOREVER)
        return X


@case(1)
def data_loader_worker_is_stuck():
    for batch in DataLoader(Stuck(), batch_size=2, num_workers=1):  # here
        dist.all_reduce(batch)


@case(1)
def data_set_is_stuck():
    for batch in DataLoader(Slow(), batch_size=2):
        dist.all_reduce(batch)


class Slow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if RANK == 1 and index >= 4:
            time.sleep(FOREVER)  # data_set_is_stuck
        return X


@case(1)
def empty_queue():
    train(2)
    if RANK == 1:
        queue.Queue().get()  # here
    train(1)


@case(1)
def stopped():
    train(2)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # here
    train(1)


@case(1)
def collective_in_a_branch():
    train(2)
    if RANK == 0:
        dist.all_reduce(X)
    else:
        time.sleep(FOREVER)  # here


@case(None)
def other_order():
    train(2)
    other = dist.new_group([0, 1])
    first, second = (None, other) if RANK == 0 else (other, None)
    dist.all_reduce(X, group=first)
    dist.all_reduce(X, group=second)


@case(1, world=3)
def wrong_group():
    pair = dist.new_group([0, 1])
    train(2)
    if RANK == 1:
        dist.all_reduce(X, group=pair)  # here
    dist.all_reduce(X)


@case(1)
def barrier_in_a_branch():
    train(2)
    if RANK == 0:
        dist.barrier()
    time.sleep(FOREVER)  # here


@case(1)
def monitored_barrier():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.monitored_barrier()


@case(1)
def object_gather():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.all_gather_object([None, None], {"loss": 1.0})


@case(1)
def object_broadcast():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.broadcast_object_list([None], src=1)


@case(1)
def waits_for_a_fork():
    train(2)
    if RANK == 1:
        child = os.fork()
        if not child:
            time.sleep(FOREVER)
        os.waitpid(child, 0)  # here
    train(1)


@case(1)
def full_pipe():
    train(2)
    if RANK == 1:
        child = subprocess.Popen([sys.executable, "-c", "print('x' * 1_000_000)"], stdout=subprocess.PIPE)
        child.wait()  # here
    train(1)


@case(1)
def endless_loop():
    train(2)
    if RANK == 1:
        while True:  # here
            pass  # here
    train(1)


@case(1)
def endless_in_c():
    train(2)
    if RANK == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")  # here: it holds the interpreter, which no thread gets then
    train(1)


@case(1)
def asleep_in_c():
    train(2)
    if RANK == 1:
        ctypes.PyDLL(None).sleep(FOREVER)  # here: it holds the interpreter
    train(1)


@case(1)
def nobody_sends():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.recv(X, src=1)


@case(None)
def both_receive():
    train(2)
    dist.recv(X, src=1 - RANK)


@case(1)
def waits_for_a_program():
    train(2)
    if RANK == 1:
        subprocess.run(["sleep", str(FOREVER)])  # here
    train(1)


@case(1)
def waits_for_a_connection():
    train(2)
    if RANK == 1:
        server = socket.create_server(("127.0.0.1", 0))
        server.accept()  # here
    train(1)


@case(1)
def file_lock():
    file = open(f"{tempfile.gettempdir()}/slipway-gallery-{os.environ['MASTER_PORT']}", "w")
    if RANK == 0:
        fcntl.flock(file, fcntl.LOCK_EX)
    train(2)
    if RANK == 1:
        fcntl.flock(file, fcntl.LOCK_EX)  # here
    train(1)


@case(1)
def event_that_nobody_sets():
    train(2)
    if RANK == 1:
        threading.Event().wait()  # here
    train(1)


@case(1)
def asynchronous():
    train(2)
    if RANK == 1:
        asyncio.run(asyncio.sleep(FOREVER))  # here
    train(1)


@case(1)
def thread_that_never_ends():
    train(2)
    if RANK == 1:
        thread = threading.Thread(target=time.sleep, args=(FOREVER,), daemon=True)
        thread.start()
        thread.join()  # here
    train(1)


@case(1)
def pool_of_processes():
    train(2)
    if RANK == 1:
        with multiprocessing.Pool(1) as pool:
            pool.map(time.sleep, [FOREVER])  # here
    train(1)


@case(None)
def new_group_in_a_branch():
    train(2)
    if RANK == 0:
        dist.new_group([0, 1])
    train(1)


def model():
    return DistributedDataParallel(nn.Linear(4, 1))


@case(1)
def ddp_step_left_out():
    ddp = model()
    for step in range(5):
        if RANK == 1 and step == 3:
            time.sleep(FOREVER)  # here
        ddp(X).sum().backward()


@case(1)
def ddp_made_by_one():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    model()


@case(None)
def ddp_epochs_differ():
    ddp = model()
    for _ in range(5 - RANK):
        ddp(X).sum().backward()
    dist.barrier()
    dist.barrier()


@case(1)
def error_is_swallowed():
    for step in range(5):
        try:
            if RANK == 1 and step == 3:
                raise ValueError("a broken picture")
            dist.all_reduce(X)
        except ValueError:
            continue
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.barrier()


@case(1)
def writes_to_a_fifo():
    train(2)
    if RANK == 1:
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(f"{folder}/model.pt")
            open(f"{folder}/model.pt", "wb")  # here
    train(1)


@case(None)
def both_gather():
    train(2)
    dist.gather(X, [X.clone(), X.clone()] if RANK == 0 else None, dst=0)
    dist.recv(X, src=1 - RANK)


@case(1)
def source_of_a_scatter():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.scatter(X, src=1)


@case(1)
def gather_into_one_tensor():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.all_gather_into_tensor(torch.ones(8), X)


@case(1)
def polls_for_a_file():
    train(2)
    if RANK == 1:
        while not os.path.exists("/nonexistent/ready"):
            time.sleep(0.01)  # here
    train(1)


@case(1)
def download_that_stalls():
    train(2)
    if RANK == 1:
        server = socket.create_server(("127.0.0.1", 0))
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/")  # here
    train(1)


@case(1, group=False)
def never_joins():
    if RANK == 1:
        time.sleep(FOREVER)  # here
    dist.init_process_group("gloo")


@case(1)
def paused():
    train(2)
    if RANK == 1:
        signal.pause()  # here
    train(1)


@case(1)
def selects_nothing():
    train(2)
    if RANK == 1:
        select.select([], [], [])  # here
    train(1)


@case(1)
def asynchronous_collective():
    train(2)
    if RANK == 1:
        time.sleep(FOREVER)  # here
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(5)]
    for work in works:
        work.wait()


@case(2, world=3)
def chain_of_groups():
    """Rank 0 waits for 1, which waits for 2 in another group."""
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    if RANK == 2:
        time.sleep(FOREVER)  # here
    if RANK == 1:
        dist.all_reduce(X, group=second)
    dist.all_reduce(X, group=first)


if __name__ == "__main__":
    function, _, _, joined = CASES[sys.argv[1]]
    if joined:
        dist.init_process_group("gloo")
    function()
