"""Whatever breaks, a model has the weights of one version, on all ranks the same."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.engines.updating import Updater, Weights, check_shapes
from tensorcast.schema.errors import InvalidArgument, Rejected, Timeout, Unavailable

SHAPES = {name: ("F32", (2, 3)) for name in ("a", "b", "c", "d")}


def weights(version):
    return Weights(version, f"id of {version}", lambda: ((n, version) for n in SHAPES), SHAPES)


OLD, NEW = weights("old"), weights("new")


class Abandoned(BaseException):
    """The process would have ended."""


class Rank:
    """A model of four tensors on one rank. `breaks` says after how many tensors each load breaks
    off; None: it does not."""

    def __init__(self, breaks=(), agree=lambda problem: problem, records=()):
        self.tensors = dict.fromkeys(SHAPES, "old")
        self.recorded = ["old"]
        self.loads = 0
        self._breaks, self._records = list(breaks), list(records)
        self.agree = agree
        self.is_abandoned = False

    def apply(self, given):
        self.loads += 1
        after = self._breaks.pop(0) if self._breaks else None
        for n, (name, value) in enumerate(given.tensors()):
            if n == after:
                raise RuntimeError(f"broke off after {n}")
            self.tensors[name] = value

    def record(self, given, *, wait):
        fails = self._records.pop(0) if self._records and wait else False
        if fails:
            raise Timeout("Nobody hears.")
        self.recorded.append(given.version)

    def abandon(self, reason):
        self.is_abandoned = True
        raise Abandoned(reason)

    @property
    def version(self):
        (version,) = set(self.tensors.values())
        return version


def make(rank, serving=OLD):
    return Updater(rank, serving)


def test_staged_weights_are_those_of_the_model_once_they_are_committed():
    rank = Rank()
    updater = make(rank)
    updater.stage(lambda: NEW)
    assert (rank.version, rank.loads) == ("old", 0)
    assert updater.commit() == NEW
    assert (rank.version, rank.recorded[-1], updater.serving) == ("new", "new", NEW)


def test_without_weights_there_is_nothing_to_commit():
    updater = make(Rank())
    with pytest.raises(Rejected, match="No new weights"):
        updater.commit()
    updater.stage(lambda: NEW)
    updater.cancel()
    with pytest.raises(Rejected, match="No new weights"):
        updater.commit()


def test_weights_that_cannot_be_brought_change_nothing():
    def bring():
        raise Unavailable("The mover is away.")

    rank = Rank()
    updater = make(rank)
    with pytest.raises(Unavailable, match="mover is away"):
        updater.stage(bring)
    with pytest.raises(Rejected):
        updater.commit()
    assert (rank.version, rank.loads) == ("old", 0)


def test_without_the_old_bytes_nothing_is_touched():
    updater = make(Rank(), serving=None)
    with pytest.raises(Rejected, match="could not be put back"):
        updater.stage(lambda: NEW)


@pytest.mark.parametrize("after", range(4))
def test_a_load_that_breaks_off_is_undone_and_the_next_one_works(after):
    rank = Rank(breaks=[after])
    updater = make(rank)
    updater.stage(lambda: NEW)
    with pytest.raises(RuntimeError, match="broke off"):
        updater.commit()
    assert (rank.version, rank.recorded, updater.serving) == ("old", ["old"], OLD)
    updater.stage(lambda: NEW)
    updater.commit()
    assert rank.version == "new"


def test_a_change_that_is_not_on_record_is_undone_and_that_is_said():
    rank = Rank(records=[True])
    updater = make(rank)
    updater.stage(lambda: NEW)
    with pytest.raises(Timeout):
        updater.commit()
    assert (rank.version, rank.recorded, updater.serving) == ("old", ["old", "old"], OLD)


def test_a_rank_hears_what_went_wrong_on_another():
    rank = Rank(agree=lambda problem: problem or "it is not there")
    with pytest.raises(Unavailable, match="On another rank of this engine: it is not there"):
        make(rank).stage(lambda: NEW)


@pytest.mark.parametrize("again", range(4))
def test_what_cannot_be_undone_ends_the_process(again):
    rank = Rank(breaks=[2, again])
    updater = make(rank)
    updater.stage(lambda: NEW)
    with pytest.raises(Abandoned, match="old could not be put back"):
        updater.commit()


# ---- several ranks


class Group:
    """Ranks that vote, each in a thread of its own."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size)
        self._votes = []
        self._lock = threading.Lock()

    def agree(self, problem):
        with self._lock:
            self._votes.append(problem)
        if self._barrier.wait(10) == 0:
            self._answer = next(filter(None, self._votes), "")
            self._votes = []
        self._barrier.wait(10)
        return self._answer


def update_all(ranks, brings):
    """One update on all ranks at once; what each raised."""
    raised = [None] * len(ranks)

    def run(n):
        updater = make(ranks[n])
        try:
            updater.stage(brings[n])
            updater.commit()
        except (Exception, Abandoned) as error:
            raised[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return raised


def missing():
    raise Unavailable("It is not here.")


FATES = st.fixed_dictionaries(
    {
        "brings": st.booleans(),
        "breaks": st.lists(st.none() | st.integers(0, 3), max_size=2),
        "records": st.booleans(),
    }
)


@given(st.lists(FATES, min_size=1, max_size=3))
def test_whatever_breaks_on_whichever_rank_all_serve_one_version_or_none_serves(fates):
    group = Group(len(fates))
    ranks = [
        Rank(breaks=fate["breaks"], agree=group.agree, records=[not fate["records"]])
        for fate in fates
    ]
    brings = [(lambda: NEW) if fate["brings"] else missing for fate in fates]
    raised = update_all(ranks, brings)
    if any(rank.is_abandoned for rank in ranks):
        assert all(isinstance(error, Abandoned) for error in raised)
        return
    versions = {rank.version for rank in ranks}
    is_good = not any(raised)
    assert versions == ({"new"} if is_good else {"old"})
    assert is_good or all(raised), "all ranks hear of it"
    assert {rank.recorded[-1] for rank in ranks} == versions


# ---- shapes


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"a": None}, "lack a"),
        ({"a": None, "b": None, "c": None, "d": None}, r"lack a, b, c and 1 more"),
        ({"b": ("F32", (3, 2))}, r"new b is F32 \[3, 2\]; the model has F32 \[2, 3\]"),
        ({"b": ("I8", (2, 3))}, "new b is I8"),
    ],
)
def test_weights_of_another_shape_are_refused(change, why):
    new = {name: shape for name, shape in {**SHAPES, **change}.items() if shape}
    with pytest.raises(InvalidArgument, match=why):
        check_shapes(new, SHAPES)


def test_more_tensors_and_other_floats_may_come():
    check_shapes({**SHAPES, "z": ("F32", (1,)), "a": ("BF16", (2, 3))}, SHAPES)
    check_shapes({}, {})
    with pytest.raises(InvalidArgument, match="have z, which the model has not"):
        check_shapes({**SHAPES, "z": ("F32", (1,))}, SHAPES, exact=True)
