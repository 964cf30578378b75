"""Which cloud's interruption notices this launcher watches, from SLIPWAY_SPOT and what the firmware says of the machine. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from slipway.launch.resolve.settings import BY_NAME
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import Value

SETTING = "SLIPWAY_SPOT"
OFF, AUTO, AWS, GCP, AZURE = "off", "auto", "aws", "gcp", "azure"
TITLES = {AWS: "AWS", GCP: "Google Cloud", AZURE: "Azure"}
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # "Microsoft Corporation" as the vendor is any Hyper-V
DISABLED = "AWS_EC2_METADATA_DISABLED"  # AWS's own variable, which its SDKs obey


class Watched(NamedTuple):
    """The cloud whose notices are watched, OFF for none, and the reason for people."""

    cloud: str
    why: str


def name_cloud(dmi: Mapping[str, str]) -> Watched:
    """The cloud that this DMI names for certain (Host.dmi), OFF where it names none."""
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html: a UUID alone may begin so by chance.
    uuid = dmi.get("product_uuid", "") or dmi.get("hypervisor_uuid", "")
    if dmi.get("sys_vendor") == "Amazon EC2":
        return Watched(AWS, "sys_vendor is Amazon EC2")
    if uuid.lower().startswith("ec2") and dmi.get("bios_version", "").endswith(".amazon"):
        return Watched(AWS, "the UUID begins with ec2, and the BIOS is Amazon's")
    # https://cloud.google.com/compute/docs/instances/detect-compute-engine; older machines have the short name.
    if (product := dmi.get("product_name")) in ("Google Compute Engine", "Google"):
        return Watched(GCP, f"product_name is {product}")
    if dmi.get("chassis_asset_tag") == AZURE_TAG:
        return Watched(AZURE, "chassis_asset_tag is Azure's")
    found = ", ".join(f"{name} is {dmi[name]}" for name in ("sys_vendor", "product_name") if name in dmi)
    return Watched(OFF, f"DMI names no cloud: {found}" if found else "no DMI here")


def choose_watched(sources: Sources, dmi: Mapping[str, str]) -> Watched:
    """The cloud whose notices are watched: that of the setting or, with `auto`, of DMI. Raises LaunchError for any other."""
    if (choice := sources.value(SETTING)) != AUTO:
        return Watched(choice, sources.claims(BY_NAME[SETTING])[0].source)
    found = name_cloud(dmi)
    if found.cloud == AWS and sources.environ.get(DISABLED, "").lower() == "true":
        found = Watched(OFF, f"{DISABLED} is true")
    return found._replace(why=f"auto: {found.why}")


def spot_value(sources: Sources, dmi: Mapping[str, str]) -> Value:
    """The setting as `slipway plan` shows it: the decision, with the reason as its source."""
    return Value(*choose_watched(sources, dmi))
