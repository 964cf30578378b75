"""From a run to a folder that `from_pretrained` reads, with a model card, and from there to the Hub."""

from slipway.train.export.folder import export_result, export_run, push_folder, read_export

__all__ = ["export_result", "export_run", "push_folder", "read_export"]
