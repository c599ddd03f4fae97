"""New weights beside a model: its own loading code, noted and carried out elsewhere; the model does
not change before the exchange, and is as before after another one."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tensorcast.engines import aside as module
from tensorcast.engines.aside import Aside, NotAside, Slot
from tensorcast.schema.errors import Cancelled

NOT_STOPPED = threading.Event()


class Layer(nn.Module):
    """Packs its weight, as engines do, and keeps an empty one."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = parameter(torch.zeros(rows, columns))
        self.rows, self.columns = rows, columns
        self.pack()

    def pack(self):
        packed = self.weight.detach().t().contiguous()
        self.compute = lambda x: x @ packed
        self.weight = parameter(torch.empty(0))


class Model(nn.Module):
    """Two merged tensors in one layer, a norm, and a tied head."""

    def __init__(self):
        super().__init__()
        self.layer = Layer(6, 4)
        self.norm = nn.Module()
        self.norm.weight = parameter(torch.zeros(4))
        self.embed, self.head = nn.Module(), nn.Module()
        self.embed.weight = parameter(torch.zeros(8, 4))
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.ones(3))

    def forward(self, x):
        return self.layer.compute(x * self.norm.weight), x @ self.head.weight.t()

    def load_weights(self, weights):
        for name, tensor in weights.items():
            if name in ("up", "down"):
                half = 0 if name == "up" else 3
                self.layer.weight.data.narrow(0, half, 3).copy_(tensor)
            elif name == "norm":
                self.norm.weight.data.copy_(tensor)
            elif name == "embed":
                self.embed.weight[:7].data.copy_(tensor)
                self.embed.weight[7:].data.fill_(0)
            else:
                getattr(self, f"load_{name}")(tensor)

    def load_buffer(self, tensor):
        self.table.copy_(tensor)

    def load_serving(self, tensor):
        SERVING[0].norm.weight.data.copy_(tensor)

    def load_scaled(self, tensor):
        self.norm.weight.data.add_(self.norm.weight)

    def load_replaced(self, tensor):
        self.norm.weight = parameter(tensor)


SERVING: list[Model] = []


def parameter(tensor):
    return nn.Parameter(tensor, requires_grad=False)


def weights(seed):
    made = torch.Generator().manual_seed(seed)
    sizes = {"up": (3, 4), "down": (3, 4), "norm": (4,), "embed": (7, 4)}
    return {name: torch.randn(size, generator=made).bfloat16() for name, size in sizes.items()}


def find_slots(copies):
    """What the engine remembers of the beginning."""
    layer, norm, embed, head = (one for one in copies if one._parameters)
    return [
        Slot(parameter(torch.empty(6, 4, device="meta")), [(layer, "weight")]),
        Slot(parameter(torch.empty(4, device="meta")), [(norm, "weight")]),
        Slot(parameter(torch.empty(8, 4, device="meta")), [(embed, "weight"), (head, "weight")]),
    ]


class Do:
    def __init__(self):
        self.begun = 0

    def begin(self):
        self.begun += 1

    def process(self, layer):
        if isinstance(layer, Layer):
            layer.pack()


def make(model, given, stop=NOT_STOPPED, do=None):
    aside = Aside(model, find_slots)
    with aside.recording():
        type(model).load_weights(aside.copy, given)
    aside.make(do or Do(), 2, stop)
    return aside


@pytest.fixture
def model():
    made = Model()
    SERVING[:] = [made]
    return made


def answer(model):
    return [part.clone() for part in model(torch.arange(8.0).view(2, 4))]


def expect(given):
    x = torch.arange(8.0).view(2, 4)
    given = {name: tensor.float() for name, tensor in given.items()}
    head = torch.cat([given["embed"], torch.zeros(1, 4)])
    return [x * given["norm"] @ torch.cat([given["up"], given["down"]]).t(), x @ head.t()]


def same(one, other):
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_nothing_changes_before_the_exchange_and_another_one_undoes_it(model):
    before, kept = answer(model), model.norm.weight
    do = Do()
    aside = make(model, weights(1), do=do)
    assert do.begun == 4
    assert same(answer(model), before)
    aside.exchange()
    assert same(answer(model), expect(weights(1)))
    assert model.norm.weight is kept, "others hold on to the parameter"
    assert model.head.weight is model.embed.weight
    aside.exchange()
    assert same(answer(model), before)
    aside.exchange()
    assert same(answer(model), expect(weights(1)))


def test_one_update_after_the_other(model):
    for seed in range(3):
        make(model, weights(seed)).exchange()
        assert same(answer(model), expect(weights(seed)))


def test_a_tensor_of_the_same_bytes_is_used_where_it_lies(model):
    given = {name: tensor.float() for name, tensor in weights(1).items()}
    given["norm"] = torch.zeros(64)[:4]
    make(model, given).exchange()
    assert model.norm.weight.data_ptr() == given["norm"].data_ptr()
    assert same(answer(model), expect(given))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("buffer", "writes to what serves"),
        ("serving", "writes to what serves"),
        ("scaled", "does aten.add_"),
        ("replaced", "replaces weight"),
    ],
)
def test_what_the_loading_code_may_not_do(model, name, why):
    before = answer(model)
    size = 3 if name == "buffer" else 4
    with pytest.raises(NotAside, match=why):
        make(model, {**weights(1), name: torch.full((size,), 2.0)})
    assert same(answer(model), before)
    assert torch.equal(model.table, torch.ones(3))


def test_weights_that_lack_a_parameter(model):
    given = weights(1)
    del given["norm"]
    with pytest.raises(NotAside, match="nothing is loaded into weight of a Module"):
        make(model, given)


def test_a_model_that_was_changed_meanwhile_is_left_alone(model):
    aside = make(model, weights(1))
    model.norm.weight = parameter(torch.full((4,), 3.0))
    before = answer(model)
    with pytest.raises(NotAside, match="replaced meanwhile"):
        aside.exchange()
    assert same(answer(model), before)


def test_a_parameter_that_would_look_different(model):
    class Wider(Do):
        def process(self, layer):
            super().process(layer)
            if not isinstance(layer, Layer):
                layer.weight = parameter(layer.weight.double())

    with pytest.raises(NotAside, match="would look different"):
        make(model, weights(1), do=Wider())


def test_what_belongs_to_the_copy_cannot_be_given_to_the_model(model):
    class Bound(Do):
        def process(self, layer):
            super().process(layer)
            if isinstance(layer, Layer):
                layer.compute = layer.extra_repr

    with pytest.raises(NotAside, match="compute of a Layer belongs to the copy"):
        make(model, weights(1), do=Bound())


def test_it_may_be_stopped(model):
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        make(model, weights(1), stop)


def test_large_parameters_have_huge_pages(model, monkeypatch):
    monkeypatch.setattr(module, "HUGE_BYTES", 16)
    make(model, weights(1)).exchange()
    assert same(answer(model), expect(weights(1)))
