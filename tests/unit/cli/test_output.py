from __future__ import annotations

from cli_samples import ART, OPERATION
from tensorcast.cli.output import shorten, shorten_operation


def test_ids_are_shortened_to_a_beginning_that_names_them() -> None:
    assert shorten(ART) == ART[:12]
    assert shorten(None) == ""
    assert OPERATION.startswith(shorten_operation(OPERATION))
    assert len(shorten_operation(OPERATION)) == 15
