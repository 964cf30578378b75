"""A stop where nothing has changed since the last step, such as in a validation: what is saved, so that it is repeated."""

from __future__ import annotations

import torch

from slipway.train.user.generators import RandomStates, all_random_states


class Pause:
    """What a loop has been doing since an iteration or an epoch began, or since its data were read to their end.

    `within`: the loop whose body runs, `steps` or `batches`; empty before and after these.
    """

    def __init__(self) -> None:
        """Before all loops."""
        self.within = ""
        self.fresh = False  # whether a snapshot is of a run that had not begun
        self.states: RandomStates | None = None  # of the random generators, instead of those that are saved otherwise
        self._rest: RandomStates | None = None  # as they were where what is going on began
        self._wanted, self._seen = True, False  # whether the next iteration is to remember them; whether any will
        self._boundaries = 0  # of this body, after a step

    def begin(self, kind: str, device: torch.device) -> None:
        """Note that a body begins. That takes time, and so is done once, and then where a boundary was called in an iteration."""
        self.within, self._boundaries = "" if kind == "epochs" else kind, 0
        self._rest = all_random_states(device) if self._wanted or kind == "epochs" else None
        self._wanted = self._seen

    def rest(self, within: str, device: torch.device) -> None:
        """Note that a pass over the data is over."""
        self.within, self._rest = within, all_random_states(device)

    def note(self, stepped: bool) -> None:
        """Note that a boundary was called within what is going on."""
        self._seen = self._wanted = self._seen or bool(self.within)
        self._boundaries += stepped

    def may_stop(self, stepped: bool) -> bool:
        """Whether to stop here: after a step, the end of the iteration is near unless boundaries are called again and again."""
        return not (self.within and stepped and self._boundaries < 2)

    def freeze(self, stepped: bool, resumed_with: RandomStates | None, *, begun: bool) -> str:
        """Decide what is saved of the random generators, and return what has to be said."""
        if not begun:
            self.states, self.fresh = resumed_with, resumed_with is None
            return ""
        if self.within and stepped:
            return (
                f"warning: stopped by a run.boundary() within an iteration over run.{self.within}, after its step: what follows "
                "in this iteration is not done after the resume. Validate between two epochs, or before the step."
            )
        self.states = self._rest
        if self.within and self._rest is None:
            return (
                "note: stopped in the first validation within an iteration: random numbers that it drew before the stop are not "
                "drawn again"
            )
        return ""
