"""Samples and bytes of batches of any structure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import pytest
import torch
from PIL import Image
from torch.nn.utils.rnn import pack_sequence

from dlprof.integrations.first_batches import looked_at
from dlprof.targets.counting import (
    SampleCounter,
    WorkerSamples,
    count_bytes,
    count_tensors,
    sample_digests,
)

Pair = collections.namedtuple("Pair", "image label")  # noqa: PYI024 - what users return


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    name: str = "x"


class FakeArray:
    """An ndarray as far as counting goes; numpy is not installed."""

    shape = (5, 2)
    nbytes = 80


IMAGES = torch.zeros(8, 3, 4, 4)
LABELS = torch.zeros(8, dtype=torch.int64)
EDGES = torch.sparse_coo_tensor(
    torch.tensor([[0, 1, 4], [1, 2, 0]]), torch.tensor([1.0, 2.0, 3.0]), (5, 5)
)
BOXES = [{"boxes": torch.zeros(n, 4), "labels": torch.zeros(n)} for n in (1, 3, 2)]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (IMAGES, 8),
        ([IMAGES, LABELS], 8),
        ((IMAGES, LABELS), 8),
        (Pair(IMAGES, LABELS), 8),
        ({"image": IMAGES, "label": LABELS}, 8),
        ([{"image": IMAGES}, LABELS], 8),
        ([[IMAGES, LABELS]], 8),
        (Batch(tokens=torch.zeros(6, 9)), 6),
        ([IMAGES, IMAGES.clone()], 8),
        ([torch.zeros(3, 5, 5) for _ in range(16)], 16),
        (([torch.zeros(3, n, 5) for n in (4, 5, 6)], BOXES), 3),
        (BOXES, 3),
        ([torch.zeros(n) for n in (4, 5)], 2),
        ([torch.tensor(1.0), torch.tensor(2.0)], 2),
        (["a", "b", "c"], 3),
        ([IMAGES, ["a"] * 8], 8),
        ([1, 2, 3, 4], 4),
        (pack_sequence([torch.zeros(3), torch.zeros(2)]), 2),
        (FakeArray(), 5),
        (torch.tensor(1.0), None),
        (7, None),
        ("text", None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_samples(batch: object, samples: int | None) -> None:
    assert count_samples(batch) == samples


@pytest.mark.parametrize(
    "sample",
    [
        (torch.zeros(3, 8, 8), 4),
        {"image": torch.zeros(3, 8, 8), "label": torch.tensor(4)},
        {"__key__": "a", "txt": "words"},
        [torch.zeros(3, 8, 8), 4],  # as torch converts the tuple
        [torch.zeros(3, 8, 8), "a"],
        torch.zeros(16),  # features; a batch of these has two dimensions
    ],
)
def test_a_single_sample_of_a_loader_that_does_not_batch(sample: object) -> None:
    assert count_samples(sample) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.zeros(n, 3),
        lambda n: [torch.zeros(n, 3), torch.zeros(n)],
        lambda n: (torch.zeros(n, 3), torch.zeros(n)),
        lambda n: {"x": [torch.zeros(n, 3)], "y": torch.zeros(n)},
        lambda n: ([torch.zeros(3, 5, 4 + i) for i in range(n)], BOXES[:1] * n),
        lambda n: Batch(tokens=torch.zeros(n, 9)),
        lambda n: pack_sequence([torch.zeros(3)] * n),
    ],
)
@pytest.mark.parametrize("batch_size", [None, 8])
def test_a_loader_s_batches_are_all_counted_in_the_same_place(
    make: Callable[[int], object], batch_size: int | None
) -> None:
    count = SampleCounter(batch_size)
    assert [count(make(n)) for n in (8, 8, 1, 3, 2)] == [8, 8, 1, 3, 2]


def count_samples(batch: object, batch_size: int | None = None) -> int | None:
    return SampleCounter(batch_size)(batch)


def test_a_batch_with_a_figure_of_the_whole_is_no_single_sample() -> None:
    tokens = {"input_ids": torch.zeros(32, 9), "mask": torch.zeros(32, 9), "ntokens": 288}
    assert count_samples(tokens) == 32


def test_a_length_that_stays_the_same_is_not_that_of_the_samples_where_two_others_change() -> None:
    count = SampleCounter()
    batches = [
        {"classes": torch.arange(5), "x": torch.zeros(n, 5), "y": torch.zeros(n)}
        for n in (8, 12, 4, 6, 5)
    ]
    assert [count(batch) for batch in batches[:1] * 9] == [5] * 9  # as looked at again
    assert [count(batch) for batch in batches] == [5, 12, 4, 6, 5]
    assert count.wording == ", by the length of batch['x']"
    known = SampleCounter(5)
    assert [known(batch) for batch in batches] == [5] * 5


@pytest.mark.parametrize(
    "sample",
    [
        torch.zeros(3, 16, 16),
        {"image": torch.zeros(3, 16, 16), "mask": torch.zeros(1, 16, 16)},
        [torch.zeros(3, 16, 16), torch.zeros(16, 16)],
    ],
)
def test_an_image_that_nobody_batches_is_one_sample(sample: object) -> None:
    count = SampleCounter()
    assert [count(sample), count(sample)] == [1, 1]
    assert not count.wording


def test_a_batch_of_one_or_three_is_no_image() -> None:
    count = SampleCounter()
    assert [count(torch.zeros(n, 16, 8)) for n in (1, 8, 5)] == [1, 8, 5]
    assert count_samples({"x": torch.zeros(3, 16, 8), "y": torch.zeros(3)}) == 3
    assert count_samples(torch.zeros(3, 3, 16, 16)) == 3
    assert count_samples(torch.zeros(3, 16, 16), batch_size=4) == 3


def test_batches_that_change_their_structure_are_counted_all_the_same() -> None:
    count = SampleCounter()
    assert count({"x": torch.zeros(4, 3)}) == 4
    assert count([torch.zeros(5, 3)]) == 5


def strike(*_: object) -> None:
    """As torch's handler of signals does, at any line of anybody's."""
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")


@pytest.mark.parametrize(
    ("strikes", "batch_size"), [("__getitem__", 4), ("items", 4), ("items", None)]
)
def test_the_news_of_a_workers_death_is_not_taken_for_a_batch_of_another_structure(
    strikes: str, batch_size: int | None
) -> None:
    """Torch raises it at any line of anybody's, and once; it looks for who is gone 5 s later."""
    struck = type("Struck", (dict,), {strikes: strike})(x=torch.zeros(4, 3))
    count = SampleCounter(batch_size)
    if strikes == "__getitem__":  # where the number is known, it is looked at there alone
        assert count({"x": torch.zeros(4, 3)}) == 4
    with pytest.raises(RuntimeError, match="pid 7"):
        count(struck)


def test_nor_for_an_object_that_has_no_such_attribute() -> None:
    with pytest.raises(RuntimeError, match="pid 7"):
        count_bytes(type("Struck", (), {"nbytes": property(strike), "shape": (2,)})())


def test_nor_for_a_batch_that_cannot_be_compared() -> None:
    struck = type("Struck", (dict,), {"items": strike})(x=torch.zeros(4, 3))
    samples = WorkerSamples(2, lambda _: 4)
    with pytest.raises(RuntimeError, match="pid 7"):
        samples.look(0, struck)
    first = iter([struck])
    with pytest.raises(RuntimeError, match="pid 7"):
        looked_at(lambda advance, iterator: advance(iterator), samples)(next, first)
    refuses = type("Refuses", (), {"tolist": None, "shape": (2,), "nbytes": 8})()
    samples.look(0, refuses)
    assert samples.over
    assert not samples.duplicated


def test_samples_of_the_same_content_have_the_same_digest() -> None:
    images, labels = torch.rand(4, 3, 50, 50), torch.arange(4)
    digests = sample_digests([images, labels, ["a", "b", "c", "d"]], 4)
    assert len(set(digests)) == 4
    assert sample_digests([images[2:], labels[2:], ["c", "d"]], 2) == digests[2:]
    boxes = [{"boxes": torch.ones(2)}, {"boxes": torch.ones(3)}]
    assert len(set(sample_digests(boxes, 2))) == 2


def test_what_a_batch_holds_beside_its_samples_is_content_too() -> None:
    batches = [{"index": torch.arange(3), "steps": torch.full((7, 2), n)} for n in (1.0, 2.0)]
    one, other = (sample_digests(batch, 3) for batch in batches)
    assert not {whole for whole, _ in one} & {whole for whole, _ in other}


def test_single_numbers_are_distinguished_from_the_rest_of_a_sample() -> None:
    alike = sample_digests([torch.ones(3, 2, 2), torch.arange(3)], 3)
    assert [len({each[kind] for each in alike}) for kind in (0, 1)] == [3, 1]
    bare = sample_digests(torch.arange(3), 3)
    assert [len({each[kind] for each in bare}) for kind in (0, 1)] == [3, 3]


def test_the_known_batch_size_wins_where_it_fits() -> None:
    pairs = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3)]
    assert count_samples(pairs) == 3
    assert count_samples(pairs, batch_size=2) == 2
    assert count_samples((IMAGES, LABELS), batch_size=32) == 8  # the last, partial batch


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (IMAGES, 8 * 48 * 4),
        ([IMAGES, LABELS], 8 * 48 * 4 + 8 * 8),
        ({"a": FakeArray(), "b": ["xy", b"z"]}, 83),
        (BOXES, 6 * 5 * 4),
        (Batch(tokens=torch.zeros(2), name="abc"), 11),
        (pack_sequence([torch.zeros(3), torch.zeros(2)]), 5 * 4 + 3 * 8),
        ((1, None, 2.5), 0),
        ({"a": EDGES}, 2 * 3 * 8 + 3 * 4),  # not coalesced
        ([EDGES.coalesce().to_sparse_csr()], 6 * 8 + 3 * 8 + 3 * 4),
        ([EDGES.coalesce().to_sparse_csc()], 6 * 8 + 3 * 8 + 3 * 4),
    ],
)
def test_bytes(batch: object, size: int) -> None:
    assert count_bytes(batch) == size


def test_a_batch_that_holds_itself_ends() -> None:
    batch: list[object] = []
    batch.append(batch)
    assert count_bytes(batch) == 0
    count_samples(batch)
    count_samples(batch, 3)


def test_pictures_weigh_their_pixels() -> None:
    """As lists of them reach a processor of Hugging Face's that runs in the loop."""
    batch = {"images": [Image.new("RGB", (40, 30)), Image.new("L", (10, 10))], "ids": ["a", "b"]}
    assert count_bytes(batch) == 40 * 30 * 3 + 10 * 10 + 2
    assert count_tensors(batch) == 0
    assert count_samples(batch) == 2


def test_samples_that_know_each_other_are_counted_once() -> None:
    """Each of 64 knows all of them: there are more ways through that than anybody can go."""
    nodes: list[dict[str, object]] = [{} for _ in range(64)]
    for node in nodes:
        node.update(near=nodes, value=torch.zeros(4))
    assert count_bytes(nodes) == 64 * 16
    assert count_samples(nodes) == count_samples({"graph": nodes}) == 64
    assert count_samples(nodes, 8) == 64
    assert len(sample_digests(nodes, 64)) == len(sample_digests({"g": [nodes]}, 64)) == 64


class Opaque:
    """What a collate_fn makes of all samples, without a length."""


def test_an_object_of_the_user_s_own_holds_as_many_as_the_loader_batches() -> None:
    assert count_samples(Opaque(), batch_size=16) == 16
    assert count_samples(Opaque()) is None
    nothing: list[object] = [[], {}, None, 7, "text", torch.tensor(1.0)]
    assert {count_samples(batch, batch_size=16) for batch in nothing} == {None}


class Graphs:
    """A batch as PyG makes it: tensors in the attributes of an object, which is held by another."""

    def __init__(self) -> None:
        self.store = {"x": torch.zeros(40, 16), "owner": self, "kind": Graphs}
        self.ptr = torch.zeros(5, dtype=torch.int64)


def test_what_an_object_of_the_user_s_own_holds_has_bytes() -> None:
    assert count_bytes([Graphs()]) == 40 * 16 * 4 + 5 * 8
    assert count_tensors(Graphs()) == 2
    assert count_samples(Graphs(), batch_size=4) == 4


def test_events_of_a_graph_that_changes_are_counted_and_not_torch_s_batches_of_one() -> None:
    """Of PyG's TemporalDataLoader batches were counted: torch has it load one at a time."""
    batch = Graphs()
    batch.num_events = 50  # type: ignore[attr-defined]
    assert SampleCounter(1)(batch) == 50


@pytest.mark.parametrize("name", ["num_graphs", "batch_size"])
def test_graphs_are_counted_by_their_own_word_where_no_loader_has_a_batch_size(name: str) -> None:
    """Of PyG's CachedLoader and PrefetchLoader no sample could be counted."""
    count = SampleCounter()
    for number in (4, 3):
        batch = Graphs()
        setattr(batch, name, number)
        assert count(batch) == number
    assert count.wording == f", by batch.{name}"
    setattr(batch, name, torch.tensor(3))
    assert SampleCounter()(batch) is None


class Named(dict[str, object]):
    """Keys that are attributes, too; as in addict, EasyDict and their like any name makes one."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.setdefault(name, Named())


@pytest.mark.parametrize("size", [None, 8])
def test_a_dictionary_that_makes_its_keys_when_asked_is_asked_for_none(size: int | None) -> None:
    batch = Named(x=IMAGES, y=LABELS)
    assert count_samples(batch, size) == 8
    assert count_bytes(batch) == 8 * 48 * 4 + 8 * 8
    assert count_tensors(batch) == 2
    assert len({*sample_digests(batch, 8)}) == 1
    assert list(batch) == ["x", "y"]


class Slotted:
    """A sample as attrs makes its classes."""

    __slots__ = ("image", "label", "later")

    def __init__(self, label: int) -> None:
        self.image, self.label = torch.full((2, 3), float(label)), label


def test_what_a_class_with_slots_holds_counts_too() -> None:
    batch = [Slotted(1), Slotted(2)]
    assert count_bytes(batch) == 2 * 6 * 4
    assert count_tensors(batch) == 2
    assert len({*sample_digests([Slotted(1), *batch], 3)}) == 2


class Refuses:
    """A batch whose attributes can't even be asked for."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name} here")


def test_an_object_that_refuses_to_be_asked_counts_as_having_nothing() -> None:
    assert count_bytes(Refuses()) == 0
    assert count_tensors([Refuses()]) == 0
    assert count_samples(Refuses()) is None


@pytest.mark.parametrize(
    ("batch_of", "shown", "earlier"),
    [
        (lambda n: [torch.zeros(n, 16), torch.zeros(n)], "[0]", None),
        (lambda n: [torch.zeros(n, 9), torch.zeros(n, 9, dtype=torch.bool)], "[0]", None),
        (lambda n: [torch.zeros(n, 9), torch.zeros(n, 9)], "[0]", 1),
        (lambda n: [torch.zeros(1, 8, 8)] * n, "", 1),
        (lambda n: [[torch.zeros(1, 9), torch.zeros(1, 9)]] * n, "", 1),
    ],
)
def test_a_first_batch_of_one_sample_does_not_say_how_all_are_counted(
    batch_of: Callable[[int], object], shown: str, earlier: int | None
) -> None:
    count = SampleCounter()
    first = count(batch_of(1))
    assert [count(batch_of(n)) for n in (10, 1, 3)] == [10, 1, 3]
    assert count.wording == f", by the length of batch{shown}"
    assert count.earlier == earlier
    assert first == 1 or earlier == 1


def test_two_images_of_three_channels_are_counted_by_their_list_once_it_grows() -> None:
    count = SampleCounter()
    for n in (2, 2, 16, 5):
        counted = count([torch.zeros(3, 8, 8)] * n)
    assert counted == 5
    assert count.earlier == 2


def test_one_image_with_boxes_of_changing_number_stays_one_sample() -> None:
    count = SampleCounter()
    samples = [
        {"image": torch.zeros(3, 8, 8), "boxes": torch.zeros(n, 4), "labels": torch.zeros(n)}
        for n in (5, 9, 2)
    ]
    assert [count(sample) for sample in samples] == [1, 1, 1]
