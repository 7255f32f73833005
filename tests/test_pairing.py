"""Variables of two trainings are paired only where their partner is sure; no TensorFlow here."""

from __future__ import annotations

from compare.records.model import Variable
from compare.watch.pairing import PATH, by_key, in_order, paired


def of(names: str, *shapes: tuple[int, ...]) -> list[Variable]:
    """Variables of these names and shapes."""
    return [Variable(name, shape, "float32") for name, shape in zip(names.split(), shapes, strict=True)]


def test_a_path_that_two_variables_have_pairs_neither() -> None:
    assert by_key(PATH, of("a a b", *[(2,)] * 3), of("a b", *[(2,)] * 2)) == {1: 2}
    assert by_key(PATH, of("a c b", *[(2,)] * 3), of("a b", *[(2,)] * 2)) == {0: 0, 1: 2}


def test_variables_are_taken_in_their_order_among_those_of_equal_shape() -> None:
    there = of("a b c", (2,), (3,), (2,))
    assert in_order(there, of("d e f", (2,), (2,), (3,))) == [0, 2, 1]
    assert in_order(there, of("d e f", (2,), (3,), (3,))) == []


def test_a_longer_path_is_that_of_the_layer_and_the_variable_that_it_ends_with() -> None:
    there = of("model/out/kernel model/dense/kernel model/out/bias model/w", (2, 2), (2, 2), (2,), (2,))
    wanted = of("out/bias dense/kernel out/kernel model/w", (2,), (2, 2), (2, 2), (2,))
    assert paired(there, wanted) == [2, 1, 0, 3]
    assert paired(there[:2], of("other/kernel kernel", (2, 2), (2,))) == []
    assert paired(of("a b", (2,), (3,)), of("c d", (3,), (2,))) == [1, 0]


def test_variables_are_paired_by_position_and_shape_then_by_path_else_by_shape_where_that_is_unique() -> None:
    shapes = (2, 3), (3,), (3, 3), (3,)
    there, of_turned = of("a/kernel a/bias b/kernel b/bias", *shapes), [shapes[i] for i in (2, 3, 0, 1)]
    assert paired(there, of("w x y z", *shapes)) == [0, 1, 2, 3]
    assert paired(there, of("m/b/kernel m/b/bias m/a/kernel m/a/bias", *of_turned)) == [2, 3, 0, 1]
    assert paired(there[:3], of("x y z", (3,), (3, 3), (2, 3))) == [1, 2, 0]
    turned = of("x y z w", *of_turned)
    assert paired(there, turned) == [], "two biases have one shape"
    assert in_order(there, turned) == [2, 1, 0, 3], "so only the order of both biases tells them"
    assert in_order(there[:3], turned) == [], "one bias is missing"
