"""Takes secrets out of what people may pass on. A secret is known by its name, by its form or by its value: tokens, addresses,
headers, private keys, and values after names.

Pure. No program can recognise a secret in a text that has neither a telling name nor a known form, and whose value is not given.
No form takes more than linear time, whatever the text: every repetition that another may follow is bounded. The forms are texts,
which `re` compiles when a line needs them: all of them together take 10 ms, which would slow down every start.
"""

import json
import re
import shlex
import urllib.parse
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from slipway.protocol.secret_names import names_secret

STARS = "***"
SHORTEST = 4  # characters; a shorter value protects nothing, and would blank out half of every text
HARMLESS = frozenset({"true", "false", "none", "null", "auto", "yes", "no", "on", "off", STARS})
# In running text these mean too many other things, without a word before them.
BARE = frozenset({"key", "auth", "otp", "pw"})

# Characters; a private RSA key of 16384 bits takes 12,800, and each line of a log has a time in front.
KEY_BLOCK = 20_000
LINES = 40  # that a quoted value or a block of YAML may go on for
TIME = r"(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z ?)?"  # what stands before each line of a rank's log

# A value after a name: quoted (the quotes may be escaped themselves), in brackets, or bare. A mark ends a bare value unless it
# continues with something that is not the next name.
_NEXT = r"""["']?[\w.-]{1,100}\\?["']?\s?[:=]"""
_QUOTED = r"""[bru]{0,2}(?P<quote>\\{0,7}["'`])(?:[^\n]{0,8000}?(?P<close>(?<!\\)(?P=quote))|[^\n]*)"""
_LIST = r"\[[^\]\n]{0,2000}\]|\{[^{}:=\n]{0,300}\}"
_BARE = (
    r"""(?!\{)(?:[^\s,;&)}\]"'`\\<>|]|\\(?![nrt"'])|<(?!/)|[>|](?=\w)"""
    rf"""|[,;](?=[\w!@#$%^*+/=~?.-])(?!.{_NEXT})|&(?!{_NEXT})|[)}}\]"'`](?=\w)(?!.{_NEXT}))+"""
)
VALUE = rf"\$?{_QUOTED}|{_LIST}|{_BARE}"

# Names with what follows them, up to the value.
NAMED = (
    # NAME=, "name": , name => , config['name'] = , name: str =
    r"""(?<![\w$-])-{0,2}(?P<name>[^\W\d][\w.-]{0,100})(?:\\{0,7}["'`])?\]?[ \t]{0,9}"""
    r"""(?:[:=]=?>?|!=)=?[ \t]{0,9}(?:(?:str|bytes)[ \t]?=[ \t]?)?""",
    r"""(?<![\w-])-{1,2}(?P<name>[A-Za-z][\w.-]{1,100})["']?(?:[ \t]{1,9}|,[ \t]{0,9})(?!["']?--)""",  # --name value
    r"""<(?P<name>[A-Za-z][\w.:-]{0,100})(?:\s[^<>\n]{0,300})?>""",  # XML
)
PAIR = (  # {"name": "DB_PASS", "value": "…"}, as in Kubernetes' files; Key and Value of clouds; attributes of XML
    r"""\b(?i:name|key)\\?["']?\s{0,9}[:=]\s{0,9}\\?["']?(?P<name>[\w.-]{1,100})\\?["']?,?\s{0,99}\\?["']?"""
    r"""\b[Vv]alue\\?["']?\s{0,9}[:=][ \t]{0,9}"""
)
TUPLE = (  # ('NAME', 'value'), as of os.environ.items(), also where pprint breaks it
    r"""(?<=[(\[])[bu]?\\{0,7}["'](?P<name>[^\W\d][\w.-]{0,100})\\{0,7}["'],\s{0,9}"""
    rf"""{TIME}\s{{0,80}}"""
    r"""(?P<secret>[bru]{0,2}(?P<quote>\\{0,7}["'])[^\n]{0,300}?(?<!\\)(?P=quote))(?=[)\]])"""
)
_CELL = "|│┃║"  # what is between the cells of a table
# Names and their values where no mark joins them, in which names of other things would be found.
PAIRED = (
    rf"""(?<![\w.$-])(?P<name>[^\W\d][\w.-]{{0,100}})[`*]{{0,3}}[ \t]{{0,80}}[{_CELL}][ \t]{{0,80}}(?P<secret>[^\s{_CELL}"']+)""",
    r"<t[dh]\b[^<>]{0,100}>\s{0,9}(?P<name>[^\W\d][\w.-]{0,100})\s{0,9}</t[dh]>\s{0,9}<t[dh]\b[^<>]{0,100}>(?P<secret>[^<>]+)",
    # NAME value, and a row of a CSV file
    r"""(?<![\w.$-])(?P<name>[A-Z]\w{6,100})(?:[ \t]{1,80}(?:->[ \t]{0,9})?|["']?[,;]["']?)(?P<secret>[^\s,;"'()]{6,})""",
    # percent-encoded, as a part of an address
    r"""(?:(?<![\w.$%-])|(?<=%2[0267])|(?<=%3F))(?P<name>[^\W\d][\w.-]{0,100})(?:%2[27])?%3[ADad](?:%2[027]){0,3}"""
    r"""(?P<secret>(?:[^\s%&"'<>]|%(?!2[267C]))+)""",
)

ADDRESSES = (
    # user:password@host, where the password may hold / and @, but is no port
    r"""://[^\s/:]{0,100}:(?P<secret>(?!\d{1,5}(?:[/?#,;)]|\Z))[^\s"'<>]{1,300})@""",
    r"""://[^\s/:@]{0,100}:(?P<secret>[^\s/@"']{1,300})@""",
    r"""(?i)%3A%2F%2F[^\s%/]{0,100}%3A(?P<secret>(?!\d{1,5}%(?!40))[^\s/"'<>]{1,300}?)%40""",
    # the same without a scheme, unless it is an address of mail
    r"""(?<![\w./@:-])(?!(?i:mailto|from|to|cc|bcc|e?mail|author)\b)[A-Za-z_][\w.-]{0,60}:(?P<secret>(?!//)[^\s"'<>]{4,300})"""
    r"""@(?:(?:tcp|unix)\(|[\w.-]{1,200}(?::\d{1,5})?(?:[/?\s"',)]|\Z))""",
)
LINE_FORMS = (
    *ADDRESSES,
    r"://(?P<secret>(?=[^\s/:@]{0,99}\d)[^\s/:@]{20,300})@",  # a token in a user's place
    r"""[?&](?i:key|sig|signature|code|auth|pass|pwd|x-(?:amz|goog)-(?:signature|credential))=(?P<secret>[^&\s"'#<>]+)""",
    # webhooks of chats
    r"""(?i)://hooks\.[^\s/]{1,100}/(?P<secret>[^\s"'<>]{8,})""",
    r"""(?i)://[^\s"'<>]{0,200}?/(?:[a-z]{0,20}hooks?(?:b2)?|services(?=/T)|with/key)/(?P<secret>[^\s"'<>]{16,})""",
    r"/bot(?P<secret>\d{6,12}:[\w-]{20,})",
    # headers
    r"""(?i)authorization\\{0,7}["']?\s{0,9}[:=,]\s{0,9}b?\\{0,7}["']?"""
    r"""(?P<secret>(?:digest|aws4)[^\n]*|(?:[a-z]{1,20}\s{1,9})?[^\s"',\\]+)""",
    r"""(?i)\b(?:set-)?cookie\\{0,7}["']?\s{0,9}:\s{0,9}\\{0,7}["']?(?P<secret>[^\n"'\\]+)""",
    r"(?i)\bbearer\s{1,9}(?P<secret>(?=\S{0,99}\d|\S{20})[\w.~+/=-]{8,})",
    r"\bBasic\s{1,9}(?P<secret>(?=\w{0,99}[\d=+/])[A-Za-z0-9+/]{8,}={0,2})",
    # programs whose options have other names
    r"""\b(?:curl|wget|http)\b[^\n]{0,300}?\s(?:-u|--(?:proxy-)?user)[\s=]{0,3}["']?[^\s:"']{1,60}:(?P<secret>[^\s"']+)""",
    r"""\b(?:mysql\w{0,10}|mariadb[\w-]{0,10})\b[^\n]{0,300}?\s-p(?P<secret>[^\s-]\S*)""",
    r"""\b(?:sshpass -p|redis-cli [^\n]{0,100}?-a|docker login [^\n]{0,100}?-p)\s{1,3}(?P<secret>\S+)""",
    r"(?i)\b(?:login|user|account)\s{1,9}\S{1,100}\s{1,9}password\s{1,9}(?P<secret>\S+)",  # .netrc
    r"(?i)\A\s{0,9}(?:password|passphrase)[ \t]{1,80}(?P<secret>(?=\S{0,99}\d)\S{6,300})\s*\Z",  # its own line of such a file
    r"(?i)\b(?:identified by|password)\s{1,9}(?P<secret>'[^'\n]{1,300}')",  # SQL
    r"""(?i);\s{0,3}(?:pwd|pw|key|sig)=(?P<secret>\{[^}\n]{1,300}\}|[^;\s"']+)""",  # within a connection string
    # tokens whose beginning names their issuer
    r"\b(?P<secret>hf_(?=[a-z]{0,99}[A-Z0-9])[A-Za-z0-9]{10,})",  # not hf_something of a program
    r"\b(?P<secret>gh[oprsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,})",
    r"\b(?P<secret>(?:gl[a-z]{2,6}-|[rs]k_(?:live|test)_|xapp-|npm_|pypi-|dckr_[a-z]{3}_|nvapi-|gsk_|r8_|pplx-|tgp_v1_"
    r"|do[opr]_v1_|dapi|hv[bs]\.|glsa_|GOCSPX-|ya29\.|SG\.|LTAI|lin_api_|ntn_|api_org_|wandb_v1_|ATATT3|AGE-SECRET-KEY-1)"
    r"(?=[\w.-]{0,99}\d)[\w.-]{16,})",
    r"(?P<secret>\b\w{3}\dQ~[\w.~-]{31,})",
    r"\b(?P<secret>(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16})\b",
    r"\b(?P<secret>eyJ[\w-]{8,200}\.eyJ[\w-]{8,}\.[\w-]*)",  # a JSON web token
)
# Whether one of these may match a line, which is asked in small letters: most lines are spared the rest.
TELLING = (
    r"""@|%40|pass|pwd|\bpw\b|_pw|secret|token(?!iz|s?/s|s_per|s )|key|kennwort|contrase|cred|auth|bearer|basic|cookie|jwt"""
    r"""|mnemonic|psk|otp|conn(?:ection)?[_ ]?str|hook|notify|/bot\d|(?<![a-z])sig=|"""
    r"""signature|code=|curl|wget|mysql|mariadb|redis-cli|docker login"""
    r"""|identified|services/t|hf_|gh[oprsu]_|github_pat|gl[a-z]{2,6}[-_]|sk[-_]|xapp|xox|aiza|eyj|npm_|pypi-|dckr_|nvapi|r8_|pplx|tgp_"""
    r"""|_v1_|dapi|hv[bs]\.|gocspx|ya29|sg\.|ltai|lin_api|ntn_|api_org|atatt|akia|asia|abia|acca|a3t|q~"""
)
_HEAD, _TAIL = (rf"-{{4,5}} ?{word} [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)? ?-{{4,5}}" for word in ("BEGIN", "END"))
KEY_BLOCKS = (
    rf"{_HEAD}(?s:.{{0,{KEY_BLOCK}}}?{_TAIL}|.{{0,{KEY_BLOCK}}})",
    rf"\A(?s:.{{0,{KEY_BLOCK}}}?){_TAIL}",  # of a text cut within
)

# Colours and links of a terminal, also as repr, JSON and `cat -v` spell the character that begins them.
ESCAPE = (
    r"(?:\x1b|\\x1b|\\u001b|\\033|\^\[)"
    r"(?:\[[0-9:;<=>?]{0,40}[ -/]?[@-~]|\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)|[=>()][0-9AB]?)"
)

Span = tuple[int, int]


def redact(name: str, value: str) -> str:
    """Return the value, with stars in place of what has the form of a secret, or only stars where its name is that of one."""
    return STARS if names_secret(name) and value else _clean(value, _find)


def secret_values(*environments: Mapping[str, str]) -> dict[str, str]:
    """Those variables that hold secrets by their names or forms, of the environment and of files like `.env`."""
    return {
        name: value
        for environ in environments
        for name, value in environ.items()
        if value.lower() not in HARMLESS and redact(name, value) != value
    }


def secret_arguments(words: Sequence[object]) -> list[str]:
    """The values of a command line's secret options: `--api-key X`, `--api-key=X`, `db.password=X`."""
    values = []
    for before, word in zip([None, *words], words, strict=False):
        name, _, value = str(word).partition("=")
        if _is_option(before) and not str(word).startswith("--"):
            values.append(str(word))
        elif value and names_secret(name):
            values.append(value)
    return [value for value in values if value.lower() not in HARMLESS]


def redact_words(words: Sequence[str]) -> list[str]:
    """A command line with stars in place of its secrets."""
    return list(redact_json(list(words), make_redactor(secret_arguments(words))))


def make_redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return what takes secrets out of a text: these values in any of their spellings, and what a name or form shows."""
    known = {part for secret in secrets for part in (secret, *secret.splitlines(), *_passwords(secret))}
    spelled = {
        spelling
        for part in known
        if len(part) >= SHORTEST  # a key's lines are parts, since they have times between them in a log
        for spelling in (
            part,
            json.dumps(part)[1:-1],
            repr(part)[1:-1],
            shlex.quote(part),
            urllib.parse.quote(part, ""),
        )
    }
    values = [re.compile(re.escape(value)) for value in spelled]

    def find(text: str) -> Iterator[Span]:
        yield from (match.span() for value in values for match in value.finditer(text))
        yield from _find(text)

    return lambda text: _clean(text, find)


def _clean(text: str, find: Callable[[str], Iterator[Span]]) -> str:
    """The text with stars in place of what is found in it: as it is, and without the escape sequences of a terminal."""
    found = [*find(text)]
    if cuts := [match.span() for match in re.finditer(ESCAPE, text)]:
        # Where each cut is in the text without them; and by how much what follows it was moved.
        lengths = [0, *accumulate(end - begin for begin, end in cuts)]
        at = [begin - before for (begin, _), before in zip(cuts, lengths, strict=False)]
        found += [
            (begin + lengths[bisect_right(at, begin)], end + lengths[bisect_left(at, end)])
            for begin, end in find(re.sub(ESCAPE, "", text))
        ]
    return _blank(text, sorted(found))


def _passwords(address: str) -> Iterator[str]:
    """The passwords within an address, which a program may print alone: as they are written there and decoded."""
    for form in ADDRESSES:
        for match in re.finditer(form, address):
            yield from (match["secret"], urllib.parse.unquote(match["secret"]))


def _find(text: str) -> Iterator[Span]:
    """Where secrets are in a text, by their names and forms."""
    if "PRIVATE KEY" in text:
        yield from (match.span() for block in KEY_BLOCKS for match in re.finditer(block, text))
    if "alue" in text:
        yield from _values(text, 0, re.finditer(PAIR, text), text)
    yield from (match.span("secret") for match in re.finditer(TUPLE, text) if _is_pair(match))
    start = 0
    for line in text.splitlines(keepends=True):
        if re.search(TELLING, line.lower()):
            matches = (match for form in LINE_FORMS for match in re.finditer(form, line))
            yield from ((start + match.start("secret"), start + match.end("secret")) for match in matches)
            for form in NAMED:
                yield from _values(line, start, re.finditer(form, line), text)
            matches = (match for form in PAIRED for match in re.finditer(form, line) if _is_pair(match))
            yield from ((start + match.start("secret"), start + match.end("secret")) for match in matches)
        start += len(line)


def _values(line: str, start: int, names: Iterable[re.Match[str]], text: str) -> Iterator[Span]:
    """Where the values of secrets are whose `names` were found in a line, which begins at `start` of the text."""
    for match in names:
        if not _is_name(match["name"], option=match[0].startswith("-")):
            continue
        begin = match.end()
        end, quote = _value_end(line, begin)
        opens = quote and line[begin:end] in ('"""', "'''")
        if end > begin and (opens or not _is_harmless(match["name"], line[begin:end])):
            yield start + begin, _closing(text, start + end, quote) if quote else start + end
        elif re.fullmatch(r"[|>]?[-+\d]{0,2}\s*", line[begin:]):
            yield from _lines_below(text, start, start + len(line), block=bool(line[begin:].strip()))


def _value_end(line: str, begin: int) -> tuple[int, str]:
    """Where the value ends that begins here, and the quote that is still open at the line's end. A shell joins its pieces."""
    place = begin
    while match := re.compile(VALUE).match(line, place):
        place = match.end()
        if match["quote"] and not match["close"]:
            return place, match["quote"]
        if not match["quote"] or not re.match(r"[\w\"'`$]|\\(?![nrt])", line[place:]):
            break
    return place, ""


def _closing(text: str, begin: int, quote: str) -> int:
    """Where a quoted value ends that continues in the next lines; at this line's end where its quote is not found there."""
    below = "\n".join(text[begin : begin + KEY_BLOCK].split("\n", LINES)[:LINES])
    match = re.search(rf"(?<!\\){re.escape(quote)}", below)
    return begin + match.end() if match else begin


def _lines_below(text: str, start: int, begin: int, *, block: bool) -> Iterator[Span]:
    """The lines that are the value of a name that ends its line, at `start`: those further in, as in YAML and JSON."""
    depth = _depth(text[start:begin])
    for line in text[begin : begin + KEY_BLOCK].split("\n", LINES)[:LINES]:
        item = not block and line[_prefix(line) :].startswith("- ")  # YAML's lists need not be further in
        if line.strip() and (_depth(line) + item <= depth or (not block and re.search(r"[:=](?:\s|$)", line))):
            return
        prefix = _prefix(line)
        if line.strip():
            yield begin + prefix, begin + len(line)
        begin += len(line) + 1


def _prefix(line: str) -> int:
    match = re.match(rf"{TIME}[ \t]*", line)
    return match.end() if match else 0


def _depth(line: str) -> int:
    """How far in a line begins, after the time that a rank's log has in front."""
    time = re.match(TIME, line)
    return _prefix(line) - (time.end() if time else 0)


def _blank(text: str, spans: Sequence[Span]) -> str:
    """The text with stars in place of each span, and of those that overlap or touch together."""
    kept: list[str] = []
    last = 0
    for begin, end in spans:
        if begin > last or not kept:
            kept.append(text[last:begin])
        last = max(last, end)
    return STARS.join([*kept, text[last:]])


def redact_json(value: Any, clean: Callable[[str], str]) -> Any:
    """The same for what was read from JSON: `clean` for texts, stars for those under a secret's name or after its option."""
    if isinstance(value, dict):
        called = [value.get(field) for field in ("name", "key", "Name", "Key")]  # {"name": "DB_PASS", "value": "…"}
        paired = any(isinstance(name, str) and _is_name(name) for name in called)
        return {
            clean(name): _hide(inner, clean)
            if _is_name(name) or (paired and name.lower() == "value")
            else redact_json(inner, clean)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [
            STARS
            if isinstance(inner, str) and inner and _is_option(before) and not inner.startswith("--")
            else redact_json(inner, clean)
            for before, inner in zip([None, *value], value, strict=False)
        ]
    return clean(value) if isinstance(value, str) else value


def _hide(value: Any, clean: Callable[[str], str]) -> Any:
    """Stars for a text and for each of a list."""
    if isinstance(value, list):
        return [_hide(inner, clean) for inner in value]
    return STARS if isinstance(value, str) and value else redact_json(value, clean)


def _is_name(name: str, *, option: bool = False) -> bool:
    """Whether a name in a text is one of a secret."""
    return names_secret(name) and (option or name.isupper() or name.lower() not in BARE)


def _is_pair(match: re.Match[str]) -> bool:
    """Whether a name and a text beside it are a secret's: a heading is no value, nor is the next name of a list, or a word."""
    name, value = match["name"], match["secret"].strip("\\\"'")
    in_table = name.isupper() and not value.isupper() and not {*match[0]}.isdisjoint(_CELL)
    likely = in_table or value != match["secret"] or re.search(r"[A-Za-z].*\d|\d.*[A-Za-z]", value)
    return (
        bool(likely)
        and _is_name(name)
        and not _is_harmless(name, value)
        and not (value.isupper() and names_secret(value))
    )


def _is_option(word: object) -> bool:
    return isinstance(word, str) and word.startswith("-") and "=" not in word and names_secret(word)


def _is_harmless(name: str, value: str) -> bool:
    """Whether the value protects nothing: an empty or switched one, and in `pass: 3` a count."""
    plain = value.strip("\"'`\\").lower()
    return not plain or plain in HARMLESS or (name.lower() == "pass" and plain.rstrip("%").replace(".", "").isdecimal())
