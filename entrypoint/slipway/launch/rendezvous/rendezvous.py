"""The rendezvous: the launchers of a job find each other, compare, agree to start, and end with one verdict.

A job with several nodes opens one `Rendezvous` per launcher. It talks to the network in a thread of its own, so that the
launcher's main thread stays free for signals and torchrun. The protocol is documented in docs/rendezvous.md.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
import resource
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.messages import AttemptStart, NodeInfo
from slipway.launch.resolve.connectivity import BACKLOG, loopback_address
from slipway.launch.verdict.verdict import Outcome, Verdict, judge
from slipway.protocol.errors import FAILED, MORE_PROCESSES, UNHEALTHY, LaunchError

if TYPE_CHECKING:  # asyncio takes as long to import as the rest of a launcher; a single node never needs it
    import asyncio

    from slipway.launch.hangs.stack_dump import StackDump
    from slipway.launch.rendezvous.messages import Peer, Stopping
    from slipway.launch.rendezvous.server import Rule
    from slipway.launch.verdict.restarts import Ending

__all__ = ["AttemptStart", "NodeInfo", "Outcome", "Rendezvous", "Verdict"]
T = TypeVar("T")
POLL_SECONDS = 0.1  # between polls of `stopped` while waiting
LEAVE_SECONDS = 3.0  # that a launcher which was asked to stop waits for node 0 to tell the others
ANNOUNCE_SECONDS = 5.0  # between two times that this one tells node 0 that it leads
FILES = 320  # open files beside one connection per node: strangers, the neighbour check, the launcher's own


class Rendezvous:
    """This launcher's part in the rendezvous, as a context manager: `join` before each attempt, `report` after it."""

    def __init__(self, config: RendezvousConfig) -> None:
        """Nothing is opened yet."""
        self._config = config
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        """Listen, on node 0 and whoever may have to lead in its place, and start the thread. LaunchError: 78 where MASTER_PORT
        is in use, 1 where nothing can be opened.
        """
        if self._listen():
            _allow_files(2 * self._config.launchers + FILES)  # members, and as many that have not said hello yet
        self._thread = threading.Thread(target=self._run, daemon=True, name="rendezvous")
        try:
            self._thread.start()
        except RuntimeError as error:
            raise LaunchError(f"The launcher cannot continue: {error}. Remedy: {MORE_PROCESSES}.", UNHEALTHY) from None
        self._ready.result()
        return self

    def _listen(self) -> bool:
        """Open the port on which this launcher leads, if it ever may. Raises LaunchError."""
        config, loopback = self._config, loopback_address(self._config.address)
        self._socket = config.listening
        if self._socket is None and (config.node_rank == 0 or config.succeeds):
            self._socket = config.network.listen(0 if config.node_rank else config.port, loopback=loopback)
        return self._socket is not None

    def __exit__(self, *_: object) -> None:
        """Send what is queued and close all connections; takes at most a few seconds."""
        with contextlib.suppress(RuntimeError):  # the thread ended before
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout=5.0)

    @property
    def news(self) -> Outcome | None:
        """The first node known to have failed or to be lost since the start: this node's workers will not finish either."""
        return self._client.news

    def join(self, info: NodeInfo, stopped: Callable[[], bool] = lambda: False) -> AttemptStart | None:
        """Wait until all launchers are here, agree, and reach each other; None as soon as `stopped` is true.

        LaunchError: 76 where nodes are missing after the time-out, 78 where they do not fit together, cannot reach each
        other, or this one is refused, 75 and 79 where a node was asked to stop. May be called again for the next
        attempt, after `report`. Who calls `stop` first has the others told before it leaves.
        """
        return self._wait(self._join(info), stopped, LEAVE_SECONDS)

    def stop(self, signal: str, name: str, *, notice: bool = False) -> None:
        """Tell the others that this launcher was asked to stop, by a signal (`SIGTERM`) that people call `name`.

        `notice`: a cloud announced that its machine goes away.
        """
        from slipway.launch.rendezvous.messages import Stopping

        self._loop.call_soon_threadsafe(self._client.stop, Stopping(signal, name, notice=notice))

    @property
    def stops(self) -> "Sequence[Stopping]":
        """What other launchers were asked, as far as it is meant for all, oldest first."""
        return self._client.heard

    @property
    def peers(self) -> "Sequence[Peer]":
        """The launchers of this attempt, this one among them, where they brought findings with them: as told so far."""
        return self._client.peers

    def compare(self, dumps: "Sequence[StackDump] | None") -> "Sequence[StackDump] | None":
        """Tell where the ranks of this node stand (None: they move); on node 0 where all ranks do, once none moves any more."""
        self._loop.call_soon_threadsafe(self._client.compare, dumps)
        return self._server.dumps()

    @property
    def dumps(self) -> "Sequence[StackDump] | None":
        """On node 0 where all ranks stand, once none moves any more; this node's own may be through."""
        return self._server.dumps()

    def correct(self, outcome: Outcome) -> None:
        """On node 0, while it waits in `report`: how it ended is another thing after all."""
        self._loop.call_soon_threadsafe(self._server.correct, outcome)

    def report(
        self,
        outcome: Outcome,
        rule: "Rule",
        stopped: Callable[[], bool] = lambda: False,
        glance: Callable[[], None] = lambda: None,
    ) -> "Ending":
        """Tell how the run ended on this node, and wait for what all nodes make of it: the verdict, and what follows.

        `rule` says what follows a verdict, for those `leaving` a job that goes on: node 0's counts for all. Where node 0 is
        lost, or `stopped` becomes true, verdict and rule are this node's own. `glance` is called again and again meanwhile.
        """
        from slipway.launch.verdict.restarts import Ending

        self._server.rule = rule
        told = self._wait(self._client.report(outcome), stopped, glance=glance) or judge((outcome,))
        return told if isinstance(told, Ending) else rule(told, ())

    def watch(
        self, rule: "Rule", stopped: Callable[[], bool], glance: Callable[[], None] = lambda: None
    ) -> "Ending | None":
        """As a spare node, wait for the end of the attempt that the others run: the verdict, and what follows; None once
        `stopped`. Where node 0 is lost, the `rule` says what follows.
        """
        from slipway.launch.verdict.restarts import Ending

        told = self._wait(self._client.watch(), stopped, glance=glance)
        return told if told is None or isinstance(told, Ending) else rule(told, ())

    @property
    def spares(self) -> "Sequence[tuple[int, str]]":
        """On node 0, the spare nodes that are here while an attempt runs, each by its rank and host."""
        return self._server.idle

    def has_enough(self) -> bool:
        """On node 0, whether enough launchers are here for another attempt, spare ones among them."""
        from slipway.launch.rendezvous.rules import has_enough

        return has_enough(self._server.state, self._config)

    def _wait(
        self,
        work: Coroutine[Any, Any, T],
        stopped: Callable[[], bool],
        notice: float = 0.0,
        glance: Callable[[], None] = lambda: None,
    ) -> T | None:
        """Run a coroutine in the rendezvous's thread and wait for it, with an eye on `stopped`.

        Once node 0 was found it has `notice` seconds from then on.
        """
        future = self._begin(work)
        until = math.inf
        while not future.done():
            self._rest(future)
            glance()
            if not future.done() and stopped():
                until = min(until, self._config.clock.monotonic() + (notice if self._client.welcome else 0.0))
            if not future.done() and self._config.clock.monotonic() >= until:
                future.cancel()
                return None
            if not self._thread.is_alive():
                break
        if future.cancelled() or not future.done():
            raise LaunchError("the thread that talks to the other launchers ended unexpectedly.", FAILED)
        return future.result()

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine in the rendezvous's thread."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _rest(self, future: concurrent.futures.Future[Any]) -> None:
        """Wait until the work is done, or it is time to look at something else."""
        concurrent.futures.wait((future,), timeout=POLL_SECONDS)

    def _run(self) -> None:
        import asyncio

        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except OSError as error:
            if self._ready.done():
                raise
            text = f"This launcher cannot talk to the others: {error}. Is its limit of open files too low (ulimit -n)?"
            self._ready.set_exception(LaunchError(text, FAILED))

    async def _serve(self) -> None:
        """The thread's life: the server where this launcher may lead, its own membership, until `__exit__`."""
        import asyncio

        from slipway.launch.rendezvous.client import Client
        from slipway.launch.rendezvous.link import SEALED_BYTES
        from slipway.launch.rendezvous.server import Server

        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._excuse)
        self._coordinating: asyncio.Task[None] | None = None
        self._announcing: list[asyncio.Task[None]] = []  # at most one
        self._joining: NodeInfo | None = None  # what this launcher joins with, while it does
        self._client, self._server = Client(self._config), Server(self._config)
        self._server.offer = self._lead
        listening, tending = None, []
        if self._socket:
            self._client.door = self._socket.getsockname()[1] if self._config.succeeds else 0
            # asyncio listens once more, by default with a backlog of 100: the rest would wait for retransmissions.
            listening = await asyncio.start_server(
                self._server.converse, sock=self._socket, limit=SEALED_BYTES, backlog=BACKLOG
            )
            tending = [asyncio.create_task(work) for work in (self._server.beat(), self._client.watch_freezes())]
        self._ready.set_result(None)
        await self._closing.wait()
        for task in (*self._announcing, *tending):
            task.cancel()
        if listening:
            listening.close()
            await asyncio.sleep(0.01)  # connections accepted this moment reach the server, which closes them
        await self._server.close()
        await self._client.leave()

    async def _join(self, info: NodeInfo) -> AttemptStart:
        self._joining = info
        while self._announcing:
            self._announcing.pop().cancel()
        try:
            if self._socket:
                client = self._client
                self._lead(self._server.leadership.head_start(led=client.leads, lost=client.lost_leader))
            start = await self._client.join(info)
            self._server.leadership.clear_votes()
        finally:
            self._joining = None
        if self._coordinating and not self._client.leads:
            self._coordinating.cancel()
            self._server.disband()
        elif self._config.node_rank and self._client.leads:
            self._announcing.append(
                self._loop.create_task(self._announce(dataclasses.replace(info, nonce=start.nonce)))
            )
        return start

    def _lead(self, pause: float = 0.0) -> None:
        """Lead the attempt that this launcher joins: on node 0 after a pause, elsewhere as soon as the others ask for it."""
        if self._coordinating:
            self._coordinating.cancel()
        if self._joining:
            self._coordinating = self._loop.create_task(self._coordinate(self._joining, pause))
            self._coordinating.add_done_callback(self._inspect)

    async def _coordinate(self, info: NodeInfo, pause: float) -> None:
        import asyncio

        from slipway.launch.rendezvous.coordinator import Coordinator

        if pause:
            await asyncio.sleep(pause)  # the launcher that led may welcome this one meanwhile
        if self._config.node_rank:
            await self._server.elected(info.nonce)
            self._config.say("enough launchers cannot reach node 0: this node leads the job in its place")
        elif info.nonce and not self._client.leads:  # who has stayed is not known here
            await self._server.elected(info.nonce)
        await Coordinator(self._server, info).run()

    async def _announce(self, info: NodeInfo) -> None:
        """While this launcher leads in node 0's place, tell a node 0 that starts or is found again."""
        import asyncio

        while True:
            await self._client.announce(info)
            await asyncio.sleep(ANNOUNCE_SECONDS)

    def _inspect(self, task: "asyncio.Task[None]") -> None:
        """A coordinator that breaks must not leave anybody waiting, nor one whose attempt began and ended while this launcher was
        frozen: it has missed the start, and joins still.
        """
        if task.cancelled():
            return
        if error := task.exception():
            self._config.say(f"internal error while nodes waited for each other: {type(error).__name__}: {error}")
            self._closing.set()
        else:
            self._lead()

    def _excuse(self, loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
        """What asyncio would log with a traceback, such as running out of files, as one line."""
        self._config.say(f"rendezvous: {context.get('exception') or context['message']}")


def _allow_files(needed: int) -> None:
    """Raise the soft limit of open files where a connection per node needs it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        ceiling = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
