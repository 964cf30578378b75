"""The workloads: each module builds a small task and hands it to `slipway.train.loop.fit.fit`."""

import faulthandler
import signal

# The launcher sends this signal to workers that hang: each prints the stacks of all its threads. It stands here because
# this is imported before torch, which alone can take minutes from cold storage.
faulthandler.register(signal.SIGUSR2, file=2, all_threads=True, chain=False)
