"""How secrets look in texts: tokens, addresses, headers, private keys, and values after names.

No form takes more than linear time, whatever the text: every repetition that another may follow is bounded. They are texts,
which `re` compiles when a line needs them: all of them together take 10 ms, which no start should pay.
"""

# Characters; a private RSA key of 16384 bits takes 12,800, and each line of a log has a time in front.
KEY_BLOCK = 20_000
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
PAIR = (  # {"name": "DB_PASS", "value": "…"}, as in Kubernetes' files
    r"""\bname\\?["']?\s{0,9}:\s{0,9}\\?["']?(?P<name>[\w.-]{1,100})\\?["']?,?\s{0,99}\\?["']?\bvalue\\?["']?\s{0,9}:[ \t]{0,9}"""
)

ADDRESSES = (
    # user:password@host, where the password may hold / and @, but is no port
    r"""://[^\s/:]{0,100}:(?P<secret>(?!\d{1,5}(?:[/?#,;)]|\Z))[^\s"'<>]{1,300})@""",
    r"""://[^\s/:@]{0,100}:(?P<secret>[^\s/@"']{1,300})@""",
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
    r"(?i)\b(?:identified by|password)\s{1,9}(?P<secret>'[^'\n]{1,300}')",  # SQL
    r"""(?i);\s{0,3}(?:pwd|pw|key|sig)=(?P<secret>\{[^}\n]{1,300}\}|[^;\s"']+)""",  # within a connection string
    # tokens that begin with who gave them
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
    r"""@|pass|pwd|\bpw\b|_pw|secret|token(?!iz|s?/s|s_per|s )|key|kennwort|contrase|cred|auth|bearer|basic|cookie|jwt|mnemonic"""
    r"""|psk|otp|conn(?:ection)?[_ ]?str|hook|notify|/bot\d|sig=|signature|code=|curl|wget|mysql|mariadb|redis-cli|docker login"""
    r"""|identified|services/t|hf_|gh[oprsu]_|github_pat|gl[a-z]{2,6}[-_]|sk[-_]|xapp|xox|aiza|eyj|npm_|pypi-|dckr_|nvapi|r8_|pplx|tgp_"""
    r"""|_v1_|dapi|hv[bs]\.|gocspx|ya29|sg\.|ltai|lin_api|ntn_|api_org|atatt|akia|asia|abia|acca|a3t|q~"""
)
_HEAD, _TAIL = (rf"-{{4,5}} ?{word} [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)? ?-{{4,5}}" for word in ("BEGIN", "END"))
KEY_BLOCKS = (
    rf"{_HEAD}(?s:.{{0,{KEY_BLOCK}}}?{_TAIL}|.{{0,{KEY_BLOCK}}})",
    rf"\A(?s:.{{0,{KEY_BLOCK}}}?){_TAIL}",  # of a text cut within
)
