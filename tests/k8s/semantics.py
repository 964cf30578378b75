"""What is wrong with manifests although their schemas let them pass. `findings(documents)` is empty where all is well."""

from collections.abc import Sequence

from job_rules import JOB_RULES, sets_are_one_job
from network_rules import NETWORK_RULES
from pod_rules import POD_RULES
from security_rules import SECURITY_RULES
from templates import PODLESS, RUNTIMES, Document, name_of, of_kind, read_pods

WITH_PODS = ("Deployment", "Job", "JobSet", *RUNTIMES)


def findings(documents: Sequence[Document]) -> list[str]:
    """All that the rules say against documents that are applied together."""
    pods = read_pods(documents)
    found = [f"{document.get('kind')}: no rule looks at it" for document in documents if not _is_known(document)]
    for one in pods:
        found += [f"{one.where}: {text}" for rule in (*POD_RULES, *SECURITY_RULES) for text in rule(one)]
        found += [f"{one.where}: {text}" for rule in JOB_RULES if one.job is not None for text in rule(one, one.job)]
    found += [text for rule in NETWORK_RULES for text in rule(pods, documents)]
    found += sets_are_one_job(documents)
    runtimes = {name_of(runtime) for runtime in of_kind(documents, *RUNTIMES)}
    for document in of_kind(documents, "TrainJob"):
        if document["spec"]["runtimeRef"]["name"] not in runtimes:
            found.append(f"TrainJob {name_of(document)}: its runtime is not here")
    return found


def _is_known(document: Document) -> bool:
    return document.get("kind") in (*WITH_PODS, *PODLESS)
