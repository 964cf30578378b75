#!/bin/sh
# The image's entry point: the launcher, under tini where it is the container's first process and has to reap orphans.
#
# Elsewhere somebody else does that, and tini would be in the way: pyxis with --container-entrypoint has this start
# `sh -c 'kill -STOP $$ ; exit 0'` and waits for this very process to stop, which tini, its parent, would not.
[ $$ -ne 1 ] || exec /usr/bin/tini -- /opt/slipway/bin/slipway "$@"
exec /opt/slipway/bin/slipway "$@"
