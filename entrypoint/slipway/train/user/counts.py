"""How far a user's own loop is, in everything that counts it."""

from __future__ import annotations

from slipway.train.user.gradients import Gradients


class Counts:
    """The numbers of a run. Its snapshots have them; all ranks have the same ones, but for `lines`."""

    def __init__(self, gradients: Gradients, by_steps: bool) -> None:
        """`by_steps`: whether the steps of an optimizer are counted, and not boundaries."""
        self.gradients, self.by_steps = gradients, by_steps
        self.before = 0  # steps that were done before this process
        self.boundaries = 0
        self.number = 0  # of the last boundary after which something had changed
        self._at = 0  # `step` there
        self.iteration = 0  # of `run.steps`
        self.items = 0  # epochs, iterations and batches that this process handed out
        self.lines = 0  # that `run.log` wrote
        self.loop, self.total = "", 0  # which of `run.epochs` and `run.steps` was called, and with what
        self.looped = False  # whether a loop of ours has begun, at which random generators are set
        self.finished: tuple[str, int] | None = None  # the loop that a snapshot says was finished, and its total
        self.finishing = False

    @property
    def step(self) -> int:
        """How many steps were done, or boundaries reached."""
        return self.before + (self.gradients.steps if self.by_steps else self.boundaries)

    @property
    def next(self) -> int:
        """What `number` will be at the next boundary, if there is none before."""
        return self.number + max(int(self.by_steps), self.step - self._at)

    def move(self) -> None:
        """Note a boundary after which something has changed."""
        self.number, self._at = self.next, self.step

    def resume(self, number: int, step: int) -> None:
        """Begin where a snapshot was taken."""
        self.number, self.before, self._at = number, step, step
