"""Stop strings against a scan character by character."""

from __future__ import annotations

import random

import pytest

from tandem.sampling.stops import StopChecker


def run(stop: list[str], pieces: list[str], min_tokens: int = 0) -> tuple[str, str | None, list[str]]:
    checker = StopChecker(stop, min_tokens)
    shown = []
    for piece in pieces:
        shown.append(checker.feed(piece))
        if checker.matched is not None:
            break
    else:
        shown.append(checker.finish())
    return "".join(shown), checker.matched, shown


def test_a_match_spans_tokens_and_is_never_shown():
    text, matched, shown = run(["END"], ["a", "bE", "N", "D", "xyz"])
    assert (text, matched) == ("ab", "END")
    assert shown == ["a", "b", "", ""]


def test_held_text_is_released_when_the_match_fails():
    text, matched, shown = run(["END"], ["E", "N", "Q", "E"])
    assert (text, matched) == ("ENQE", None)
    assert shown == ["", "", "ENQ", "", "E"]


def test_text_behind_the_match_is_dropped():
    assert run(["\n\n"], ["one\n", "\ntwo\n\n"])[:2] == ("one", "\n\n")


def test_the_first_complete_match_wins_then_the_longest():
    assert run(["bcd", "c"], ["abcd"])[:2] == ("ab", "c")
    assert run(["cd", "bcd", "d"], ["abcd"])[:2] == ("a", "bcd")


def test_repeated_beginnings():
    """'aab' in 'aaab': the first 'a' turns out to be ordinary."""
    assert run(["aab"], list("aaab"))[:2] == ("a", "aab")


def test_empty_pieces_change_nothing():
    assert run(["xy"], ["x", "", "", "y"])[:2] == ("", "xy")


def test_no_stop_strings_lets_all_through_at_once():
    assert run([], ["ab", "c"])[2] == ["ab", "c", ""]


def test_min_tokens_passes_over_early_matches():
    """Tokens 'a' 'b' 'a' 'b': with min_tokens 4 the first 'ab' is text, the second ends it."""
    assert run(["ab"], list("abab"), min_tokens=4)[:2] == ("ab", "ab")
    assert run(["ab"], list("abab"), min_tokens=2)[:2] == ("", "ab")
    assert run(["ab"], list("abab"), min_tokens=5)[:2] == ("abab", None)


def test_a_match_may_begin_before_min_tokens():
    assert run(["abc"], ["ab", "c"], min_tokens=2)[:2] == ("", "abc")


def test_a_match_passed_over_may_begin_the_next():
    """'aa' in 'aaa' with min_tokens 3: the match of tokens 1 and 2 is text, that of 2 and 3 counts."""
    assert run(["aa"], list("aaa"), min_tokens=3)[:2] == ("a", "aa")


def test_a_match_inside_held_text_stays_passed_over():
    """'b' came with token 2 of 3 and is held as part of 'abc'; when that fails it is text."""
    assert run(["abc", "b"], list("abx"), min_tokens=3)[:2] == ("abx", None)


def test_finish_takes_the_last_text():
    checker = StopChecker(["ab"])
    assert checker.feed("xa") == "x"
    assert checker.finish("b") == "" and checker.matched == "ab"
    checker = StopChecker(["ab"])
    checker.feed("xa")
    assert checker.finish("\ufffd") == "a\ufffd" and checker.matched is None
    checker = StopChecker(["ab"], min_tokens=5)
    checker.feed("xa")
    assert checker.finish("b") == "ab" and checker.matched is None


def scan(stop: list[str], text: str) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        found = [item for item in stop if text[:end].endswith(item)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize("seed", range(4))
def test_any_cut_gives_the_scan(seed):
    """Random texts and stop strings over two letters, cut at random; nothing shown is ever taken back."""
    source = random.Random(seed)
    matches = 0
    for _ in range(800):
        lengths = [source.randint(1, 5) for _ in range(source.randint(1, 3))]
        stop = ["".join(source.choices("ab", k=length)) for length in lengths]
        text = "".join(source.choices("abc", [5, 5, 1], k=source.randint(0, 20)))
        cuts = sorted(source.choices(range(len(text) + 1), k=source.randint(0, 8)))
        edges = zip([0, *cuts], [*cuts, len(text)], strict=True)
        shown, matched, _ = run(stop, [text[start:end] for start, end in edges])
        assert (shown, matched) == scan(stop, text), (stop, text, cuts)
        matches += matched is not None
    assert 100 < matches < 790  # both outcomes were met
