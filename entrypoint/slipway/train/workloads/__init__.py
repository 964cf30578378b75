"""The workloads: each module builds a small task and hands it to `slipway.train.loop.fit`."""
