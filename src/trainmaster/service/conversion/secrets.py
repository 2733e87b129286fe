"""`without_secrets`: a document without the values of keys and passwords in it. Pure."""

from __future__ import annotations

import re
from typing import Final

#: The value of such a name is private.
_NAME: Final = re.compile(
    r"(?i)(?:secret|password|passwd|passphrase|token(?!i[sz])|access_key|private_key|api_key|key_id)[\w-]*"
    r"['\"]?[ \t]*(?:[:=]|>=)[ \t]*"
)
#: How many tokens of text, as in ``--max-tokens=4096``.
_AMOUNT: Final = re.compile(r"(?i)token[\w-]*['\"]?[ \t]*[:=][ \t]*['\"]?\d{1,7}(?![\w.-])")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
#: A reference to what stands elsewhere.
_REFERENCE: Final = re.compile(r"\{[ \t]*get_\w+[ \t]*:[^{}\n]*\}")
_PLAIN: Final = re.compile(r"[^\n,})\]]*")
#: What is secret whatever it is called: keys in PEM, AWS's ids of keys, logins in addresses.
_FORMS: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<pem>.*?)(?:-----END|\Z)"
    r"|(?P<id>\b(?:AKIA|ASIA)[0-9A-Z]{12,})"
    r"|://(?P<login>[^/\s@'\"]+:[^/\s@'\"]+)@",
    re.DOTALL,
)
#: Keys below a secret's own that say nothing of its value.
_HARMLESS: Final = re.compile(r"\s*(?:- )?(?:type|description|get_\w+)\s*:")
_VALUE: Final = re.compile(r"(?P<key>\s*(?:- )?[\w.-]+\s*:)?(?P<value>.*)")


def without_secrets(source: str) -> str:
    """The same text, as long, with asterisks for each character of what must not go from file to file.

    >>> without_secrets("access_key: 'AKIA1', bucket: b")
    "access_key: '*****', bucket: b"
    >>> without_secrets("--tokenizer=gpt2 --num-tokens=4096")
    '--tokenizer=gpt2 --num-tokens=4096'
    """
    hidden: list[tuple[int, int]] = []
    for found in _NAME.finditer(source):
        if _AMOUNT.match(source, found.start()):
            continue
        hidden += _value_at(source, found.start(), found.end())
    for form in _FORMS.finditer(source):
        hidden += [form.span(name) for name in ("pem", "id", "login") if form[name] is not None]
    characters = list(source)
    for begin, end in hidden:
        for at in range(begin, end):
            if not characters[at].isspace():
                characters[at] = "*"
    return "".join(characters)


def _value_at(source: str, name: int, begin: int) -> list[tuple[int, int]]:
    """Where the value of a name is."""
    if quoted := _QUOTED.match(source, begin):
        return [(quoted.start() + 1, quoted.end() - 1)]
    if _REFERENCE.match(source, begin):
        return []
    end = source.find("\n", begin)
    rest = source[begin : end if end >= 0 else len(source)]
    if rest.startswith("{"):
        return [(begin + 1, begin + len(rest))]
    if rest.strip() == "" or rest[0] in "|>":  # what is further to the right belongs to it
        return _below(source, name, begin + len(rest))
    plain = _PLAIN.match(source, begin)
    return [plain.span()] if plain else []


def _below(source: str, name: int, begin: int) -> list[tuple[int, int]]:
    """Values on the lines that follow, as long as they are further to the right than a name."""
    line = source.rfind("\n", 0, name) + 1
    column = len(source[line:name]) - len(source[line:name].lstrip())
    hidden = []
    at = begin + 1
    while at < len(source):
        end = source.find("\n", at)
        end = len(source) if end < 0 else end
        text = source[at:end]
        if text.strip() and len(text) - len(text.lstrip()) <= column:
            break
        if (found := _VALUE.fullmatch(text)) and not _HARMLESS.match(text):
            hidden.append((at + found.start("value"), at + found.end("value")))
        at = end + 1
    return hidden
