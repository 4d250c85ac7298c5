"""Text with the statistics of prose: word frequencies by Zipf's law, sentences, ragged lines."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

VOCABULARY = 20_000
_ONSETS = ("b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w")
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou")
_CODAS = ("", "", "", "n", "r", "s", "t", "nd", "ng", "l")
# Longest line: a document that a tokeniser would truncate.
_MAX_WORDS = 4000


def make_vocabulary(rng: random.Random, size: int = VOCABULARY) -> list[str]:
    """Different words, the frequent ones shorter, as in languages."""
    words: dict[str, None] = {}
    while len(words) < size:
        syllables = 1 + (len(words) > 150) + (len(words) > 3000 and rng.random() < 0.6)
        words["".join(_syllable(rng) for _ in range(syllables))] = None
        if len(words) <= 150 and rng.random() < 0.01:
            words[_syllable(rng) + _syllable(rng)] = None
    return list(words)


def make_lines(
    rng: random.Random, vocabulary: Sequence[str], lines: int, words: int
) -> Iterator[str]:
    """Lines of log-normal length with ``words`` as the median; punctuation, capitals, numbers."""
    # Zipf-Mandelbrot: frequency ~ 1 / (rank + 2.7), the usual fit for English.
    weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(len(vocabulary))))
    for _ in range(lines):
        length = min(_MAX_WORDS, max(1, int(words * rng.lognormvariate(0, 0.6))))
        chosen = rng.choices(vocabulary, cum_weights=weights, k=length)
        yield " ".join(_sentences(rng, chosen))


def _sentences(rng: random.Random, words: list[str]) -> Iterator[str]:
    start = 0
    while start < len(words):
        sentence = words[start : start + rng.randint(5, 24)]
        start += len(sentence)
        if rng.random() < 0.2:
            sentence.append(str(rng.randrange(2000)))
        yield " ".join(sentence).capitalize() + rng.choice((".", ".", ".", "?", "!", ";"))


def _syllable(rng: random.Random) -> str:
    return rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
