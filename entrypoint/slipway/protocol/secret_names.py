"""Which names of variables, options and fields say that their value is a secret. This is the only list of them.

A name is read as words: `dbPassword`, `DB_PASSWORD`, `db-password` and `db.password` are the same. The list is tested with the
names that detect-secrets and gitleaks look for, and with names of machine learning that only look like secrets.
"""

import re
from functools import lru_cache

# A word that ends with one of these names a secret, also written together with others: PGPASSWORD, MY_APIKEY, AccountKey.
_ENDINGS = re.compile(
    r"(?:passw(?:or)?d|passwords|passphrase|passcode|passwort|kennwort|contrase(?:n|ñ)a|secret[eo]?|secrets|credentials?|creds"
    r"|token|cookies?|authorization|\w+_?pwd|conn(?:ection)?_?str(?:ing)?s?"
    r"|(?:api|app|access|account|auth|client|db|encryption|private|priv|secret|service|shared|signing|ssh|storage)_?keys?"
    r"|(?:account|admin|db|ftp|key|ldap|mail|my|mysql|pg|proxy|redis|root|smtp|ssh|store|user)_?pass"
    r"|(?:access|api|auth|bearer|bot|hf|hub|refresh|secret|session)_tokens"
    r"|(?:ado|azure|bitbucket|databricks|devops|gh|github|gitlab|personal)_pat)$"  # a personal access token
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WHOLE = _words("bearer jwt mnemonic psk totp")  # secrets as words of their own only
_LAST = _words("auth key otp pass pw pwd")  # secrets as the name's last word only: not in pass_through
_AFTER_KEY = _words("base base64 b64 data id json pem")  # AWS_ACCESS_KEY_ID, SECRET_KEY_BASE
# A word after it that says that the value is about the secret, and not the secret: TOKEN_COUNT, PASSWORD_FILE.
_ABOUT = _words(
    """
    accuracy attempts budget class column count counts dim dir dirs dropout embedding embeddings enabled endpoint expiration
    expires expiry field file filename files folder format host hours indices index kind latency len length limit limits loss
    mask max min ms name names num parallelism path paths per policy port position prob rate required seconds shape size
    style sock strategy time timeout total ttl type types uri url usage version weight
    """
)
# A word before it that makes it a word of another trade: of language models, tables, caches and compilers.
_BEFORE = {
    "token": _words(
        """
        added additional answer begin boi bos class cls completion cost count decoder dist draft end eod eoi eom eos eot fim
        first forced image initializer input last mask max middle min modifier ms n new newline next num output pad padding
        per placeholder prefix prev prompt register reward sentinel sep special start stop suffix text think total train unk
        unknown video word
        """
    ),
    "key": _words(
        """
        action answer attention audio best cache caption checkpoint chosen ckpt column context conversation data dataset dict
        dictionary dropout duplicate episode eval extra feature fn foreign group host hot id image img index input
        instruction item join json label latent length lookup loss map mask message messages metric missing monitor next obs
        observation optim output param partition primary prng prompt public query question random rejected response reward
        rng role routing row score shard sort split src state stopping target text tgt time timestamp tokens train unexpected
        val video weight
        """
    ),
    "pass": _words("all backward band by first forward high last low multi n next no num one second single test two"),
}
_EXACT = {"slipway_notify": True, "pwd": False, "oldpwd": False, "old_pwd": False}  # a webhook; folders
_BOUNDARY = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Whether the value of what is called so is a secret, as far as the name says."""
    words = [word.lower() for word in _BOUNDARY.split(name) if word]
    while len(words) > 1 and words[-1].isdecimal():  # HF_TOKEN_2
        words.pop()
    return _EXACT.get("_".join(words), any(_is_secret(words, place) for place in range(len(words))))


def _is_secret(words: list[str], place: int) -> bool:
    """Whether the word at this place makes the name one of a secret, seen with the words around it."""
    word, after = words[place].rstrip("0123456789"), words[place + 1 :]
    before = words[place - 1] if place else ""
    if "webhook" in word:
        return True
    if before in _BEFORE.get(word, ()):
        return False
    if word == "key" and before and after and after[0] in _AFTER_KEY:
        return True
    if not _ABOUT.isdisjoint(after) or (word == "token" and after[:1] in (["id"], ["ids"])):
        return False
    if word in _LAST:
        return after in ([], ["config"], ["header"])
    return bool(word in _WHOLE or _ENDINGS.search("_".join(words[: place + 1])))
