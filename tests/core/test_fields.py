"""Typed fields: whatever JSON a file holds, a field is of its type or is refused by its name."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.core import fields
from coseek.core.errors import DataError
from coseek.core.strict_json import Json

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**17, 10**30) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
READ: dict[Callable[[dict[str, Json], str], object], Callable[[object], bool]] = {
    fields.text: lambda made: isinstance(made, str),
    fields.text_or_none: lambda made: made is None or isinstance(made, str),
    fields.whole: lambda made: type(made) is int and abs(made) <= 2**128,
    fields.whole_or_none: lambda made: made is None or type(made) is int,
    fields.number_or_none: lambda made: made is None or type(made) in (int, float),
    fields.flag: lambda made: isinstance(made, bool),
    fields.mapping: lambda made: isinstance(made, dict),
    fields.seconds: lambda made: isinstance(made, dict) and {*map(type, made.values())} <= {int, float},
    fields.objects: lambda made: isinstance(made, list) and {*map(type, made)} <= {dict},
    fields.texts: lambda made: isinstance(made, tuple) and {*map(type, made)} <= {str},
    fields.tokens: lambda made: isinstance(made, tuple) and all(type(one) is int and abs(one) <= 2**63 for one in made),
    fields.numbers: lambda made: isinstance(made, tuple) and {*map(type, made)} <= {float},
}


@pytest.mark.parametrize("read", READ, ids=lambda read: read.__name__)
@given(value=ANY | st.lists(st.integers(-1, 9)) | st.lists(st.text()) | st.dictionaries(st.text(), st.floats()))
def test_a_field_is_of_its_type_or_refused_by_its_name(read: Callable[..., object], value: Json) -> None:
    try:
        made = read({"seed": value}, "seed")
    except DataError as error:
        said = str(error)
        assert said.startswith("'seed' must be ") and len(said) < 200
    else:
        assert READ[read](made)


def test_a_number_of_thousands_of_digits_is_refused_and_not_written_out() -> None:
    with pytest.raises(DataError, match="'seed' must be a whole number of at most 128 bits, not a number of thousands"):
        fields.whole({"seed": 10**5000}, "seed")
