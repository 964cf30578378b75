"""An export on its way to the Hub. The token comes from HF_TOKEN or the file at HF_TOKEN_PATH, and is never shown."""

from __future__ import annotations

from pathlib import Path

from slipway.protocol.mistake import ConfigurationError
from slipway.train.hub.causes import chain, explain_failure


def push_folder(folder: Path, repo: str, public: bool, message: str) -> str:
    """Upload an export to `repo`, which is made where there is none (private unless `public`). Returns its address.

    Raises ConfigurationError for what the user can mend, HubError for what may pass.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if constants.is_offline_mode():
        raise ConfigurationError("HF_HUB_OFFLINE is set; unset it to upload.")
    if not get_token():
        raise ConfigurationError(
            "The Hub takes uploads from accounts only: set HF_TOKEN to a token that may write, or HF_TOKEN_PATH to a file "
            f"that holds it. Make one at {constants.ENDPOINT}/settings/tokens."
        )
    api = HfApi()
    try:
        made = api.create_repo(repo, private=not public, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=message)
    except Exception as error:
        for cause in chain(error):
            if isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403):
                raise ConfigurationError(
                    f"The Hub does not let the owner of the token in use write to {repo} ({cause.response.status_code}). "
                    f"Type a name of your own account's, and use a token that may write: "
                    f"{constants.ENDPOINT}/settings/tokens"
                ) from None
        raise explain_failure(error, repo, None, "model") from error
    return str(made)
