"""The order of a model's tensors."""

from tensorcast.client.fusing import order_fused


def ordered(*names: str) -> list[str]:
    return order_fused(names, str)


def test_what_is_not_fused_stays_where_it_was():
    names = ("model.norm.weight", "lm_head.weight", "model.embed_tokens.weight")
    assert ordered(*names) == list(names)


def test_members_of_a_group_follow_its_first_in_the_order_of_the_engine():
    layer = "model.layers.3.self_attn"
    names = [f"{layer}.{p}_proj.weight" for p in ("k", "o", "q", "v")]
    assert ordered(*names) == [f"{layer}.{p}_proj.weight" for p in ("q", "k", "v", "o")]


def test_each_layer_and_each_kind_of_tensor_has_groups_of_its_own():
    names = [
        f"l.{n}.{m}.{kind}"
        for n in (0, 1)
        for m in ("up_proj", "gate_proj")
        for kind in ("weight", "weight_scale")
    ]
    assert ordered(*names) == [
        f"l.{n}.{m}.{kind}"
        for n in (0, 1)
        for kind in ("weight", "weight_scale")
        for m in ("gate_proj", "up_proj")
    ]


def test_all_experts_of_a_layer_are_one_by_number():
    names = [f"x.experts.{n}.{w}.weight" for n in (10, 2) for w in ("w1", "w2", "w3")]
    assert ordered(*names) == [
        *(f"x.experts.{n}.{w}.weight" for n in (2, 10) for w in ("w1", "w3")),
        *(f"x.experts.{n}.w2.weight" for n in (2, 10)),
    ]


def test_nothing_is_lost_or_made():
    names = ["q_proj", "a.q_proj", "q_proj.b", "experts.1.w1", "a.experts.x.w1", ""]
    assert sorted(ordered(*names)) == sorted(names)
