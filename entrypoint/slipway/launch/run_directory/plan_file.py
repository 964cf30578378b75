"""`plan.json` in a node's folder: what a launcher decided, without secrets, for whoever looks at the run later."""

from pathlib import Path

from slipway.launch.resolve.plan import Plan, plan_json, resolved_values
from slipway.launch.resolve.settings import Sources
from slipway.protocol.files import PLAN_FILE, write_json
from slipway.protocol.redact import make_redactor, redact_json, secret_values


def write_plan(node_dir: Path, plan: Plan, sources: Sources) -> None:
    """Write what `slipway plan --json` shows, and the launcher's `notes`; options.json has the workload's. Raises OSError."""
    shown = plan_json(plan, resolved_values(plan.topology, sources), {})
    del shown["options"]
    clean = make_redactor(secret_values(sources.environ, sources.env_file).values())
    write_json(node_dir / PLAN_FILE, redact_json({**shown, "notes": list(plan.topology.notes)}, clean))
