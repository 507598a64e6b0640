"""Names that a reader takes for another one: invisible characters, letters of other scripts."""

from __future__ import annotations

from collections.abc import Iterable

_LETTERS = str.maketrans("аеіјӏорсухѕһԁԛԝкмнтвɡɑαικνορυτϲ", "aeijlopcyxshdqwkmhtbgaaiknopytc")
"""Cyrillic, Greek and Latin letters by the letter of a key that they look like."""
_PLAIN = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZi01", b"abcdefghljklmnopqrstuvwxyzlol")
_NO_LETTERS = bytes(b for b in range(128) if not chr(b).isalnum())


def skeleton(name: str) -> str:
    """The letters of a name as they look: equal for names that look alike, whatever their case,
    blanks, punctuation and invisible characters."""
    if not name.isascii():
        from unicodedata import normalize

        letters = normalize("NFKD", name).casefold().translate(_LETTERS)
        name = "".join(letter for letter in letters if letter.isalnum())
    return name.encode("utf-8", "surrogatepass").translate(_PLAIN, _NO_LETTERS).decode("latin-1")


def looks_like(name: str, names: Iterable[str]) -> str | None:
    """Which of some names it looks like without being it; None: none."""
    wanted = skeleton(name)
    return next((other for other in names if skeleton(other) == wanted and other != name), None)


def spelled_out(name: str) -> str:
    """A name in ASCII, with what is not a plain character in it: 'op\\u0435n' (has U+0435 CYRILLIC
    SMALL LETTER IE)."""
    from unicodedata import name as name_of

    odd = dict.fromkeys(letter for letter in name if not letter.isascii() or letter < " ")
    told = [f"U+{ord(letter):04X} {name_of(letter, '')}".rstrip() for letter in list(odd)[:3]]
    return ascii(name[:100]) + (f" (has {', '.join(told)})" if told else "")
