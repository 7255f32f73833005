"""Variables of two trainings are paired only where their partner is sure; no TensorFlow here."""

from __future__ import annotations

from compare.watch.pairing import PATH, by_key, in_order, paired


def test_a_path_that_two_variables_have_pairs_neither() -> None:
    assert by_key(PATH, ["a", "a", "b"], [(2,)] * 3, ["a", "b"], [(2,)] * 2) == {1: 2}
    assert by_key(PATH, ["a", "c", "b"], [(2,)] * 3, ["a", "b"], [(2,)] * 2) == {0: 0, 1: 2}


def test_variables_are_taken_in_their_order_among_those_of_equal_shape() -> None:
    assert in_order([(2,), (3,), (2,)], [(2,), (2,), (3,)]) == [0, 2, 1]
    assert in_order([(2,), (3,), (2,)], [(2,), (3,), (3,)]) == []


def test_a_longer_path_is_that_of_the_layer_and_the_variable_that_it_ends_with() -> None:
    there = ["model/out/kernel", "model/dense/kernel", "model/out/bias", "model/w"]
    wanted = ["out/bias", "dense/kernel", "out/kernel", "model/w"]
    shapes = [(2, 2), (2, 2), (2,), (2,)]
    assert paired(there, shapes, wanted, [(2,), (2, 2), (2, 2), (2,)]) == [2, 1, 0, 3]
    assert paired(there[:2], shapes[:2], ["other/kernel", "kernel"], [(2, 2), (2,)]) == []
    assert paired(["a", "b"], [(2,), (3,)], ["c", "d"], [(3,), (2,)]) == [1, 0]
