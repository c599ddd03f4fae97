from __future__ import annotations

from cli_samples import Tcctl
from samples import BEGIN
from tensorcast.schema.api_policies import ParameterInfo, PolicyInfo
from tensorcast.schema.errors import NotFound


def policy(name: str = "keep-last", **changes: object) -> PolicyInfo:
    parameters = (ParameterInfo(name="versions", type="int", value=5, default=3),)
    values = {
        "policy": name,
        "state": "on",
        "about": "Keeps the last.",
        "origin": "built in",
        "parameters": parameters,
        "set_by": "user:ada@desk",
        "set_at": BEGIN,
    }
    return PolicyInfo(**(values | changes))


def test_ls(tcctl: Tcctl) -> None:
    tcctl.answer(policies=(policy(), policy("spread", state="off", parameters=())))
    (first, _) = tcctl("policy", "ls", "-o", "json").data
    assert set(first) >= {"policy", "state", "parameters", "origin", "about"}
    assert tcctl("policy", "ls", "-q").out == "keep-last\nspread\n"
    assert "versions=5" in tcctl("policy", "ls").out


def test_show_tells_why_it_was_stopped(tcctl: Tcctl) -> None:
    tcctl.answer(policy=policy(state="stopped", reason="flood", detail="too\n  much\n"))
    out = tcctl("policy", "show", "keep-last").out
    assert "flood: too much" in out
    assert "versions" in out


def test_show_tells_what_was_refused(tcctl: Tcctl) -> None:
    tcctl.answer(policy=policy(refused=2, refusal="event 7: no artifact."))
    told = "2 commands since its control plane began; event 7: no artifact."
    assert told in " ".join(tcctl("policy", "show", "keep-last").out.split())
    tcctl.answer(policy=policy())
    assert "in vain" not in tcctl("policy", "show", "keep-last").out


def test_parameters_are_json_or_text(tcctl: Tcctl) -> None:
    api = tcctl.answer(enable_policy=None, set_policy=None, policy=policy())
    tcctl("policy", "enable", "keep-last", "versions=5", 'names=["a*"]', "mode=fast", "x=null")
    tcctl("policy", "enable", "keep-last")
    tcctl("policy", "set", "keep-last", "versions=7")
    given = {"versions": 5, "names": ["a*"], "mode": "fast", "x": None}
    calls = [(name, args) for name, args, _ in api.calls if name != "policy"]
    assert calls == [
        ("enable_policy", ("keep-last", given)),
        ("enable_policy", ("keep-last", None)),
        ("set_policy", ("keep-last", {"versions": 7})),
    ]


def test_words_that_set_nothing_are_wrong(tcctl: Tcctl) -> None:
    tcctl.answer()
    assert tcctl("policy", "set", "keep-last", "versions").code == 2


def test_disable(tcctl: Tcctl) -> None:
    tcctl.answer(disable_policy=None, policies=(policy("spread"),))
    assert tcctl("policy", "disable", "spread", "-q").out == "spread\n"
    assert "spread answers no more events" in tcctl("policy", "disable", "spread").out
    tcctl.answer(disable_policy=None, policies=(policy("spread", state="off"),))
    assert "spread was off, and stays so." in tcctl("policy", "disable", "spread").out
    tcctl.answer(policies=(), disable_policy=NotFound("There is no policy 'x'."))
    assert tcctl("policy", "disable", "x").code == 3
