"""What an `InputError` says."""

from copy import deepcopy

import pytest

from time2decide.core.files import validate_input_file
from time2decide.core.validation import InputError, describe_value, expect


def test_a_message_is_one_line_that_a_terminal_only_prints():
    with pytest.raises(InputError) as caught:
        expect(False, "a\nb", "no \x1b[31m colour", "é 𝔸 \u2028 \ud800")
    assert str(caught.value) == r"a\nb: expected no \x1b[31m colour, found é 𝔸 \u2028 \ud800"
    assert str(deepcopy(caught.value)) == str(caught.value)
    assert len(str(InputError("x" * 10**6))) < 2010


def test_any_value_is_described_in_a_line():
    deep = []
    for _ in range(5000):
        deep = [deep]
    for value in (deep, 10**5000, "x" * 10**6, {"a": "\n" * 100}):
        assert len(describe_value(value)) < 90
        assert "\n" not in describe_value(value)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_none(tmp_path, name):
    with pytest.raises(InputError, match="expected a file, found none"):
        validate_input_file(tmp_path / name)
