"""Caffe's ``mem_param`` block, read out of a whole net."""

from __future__ import annotations

import pytest

from memplan_cli.settings.settings import MemParam
from memplan_cli.settings.sources import merge_layers, read_prototxt
from settings.test_sources import refusal


def test_a_whole_net_is_skipped_but_for_its_mem_param() -> None:
    text = r"""
name: "net { mem_param { }"  # mem_param { optimize_train: false }
layer { name: 'a' type: "Convolution" convolution_param < num_output: 64 > top: "fc1" }
mem_param {
  optimize_train: true   # as it was
  optimize_test: false,
  exclude_blob: "fc1" exclude_blob: 'fc\x32'
}
layer { name: "b" blobs { data: [1.5, -2e3] } }
"""
    assert merge_layers([read_prototxt(text, "f")]).mem_param == MemParam(
        optimize_train=True, optimize_test=False, exclude_blob=("fc1", "fc2")
    )


def test_a_prototxt_may_give_repeated_names_as_a_list() -> None:
    text = (
        """mem_param < exclude_blob: ["fc1", 'fc2'] exclude_blob: [] exclude_blob: "fc3" >"""
    )
    found = merge_layers([read_prototxt(text, "f")]).mem_param
    assert found == MemParam(exclude_blob=("fc1", "fc2", "fc3"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mem_param {\n optimise_train: true }",
            "f:2:2: unknown key 'mem_param.optimise_train'",
        ),
        (
            "mem_param { optimize_train: 1 }",
            "f:1:29: mem_param.optimize_train: expected true or false, not 1",
        ),
        ("mem_param { optimize_train: yes }", "f:1:29: expected true, false or a quoted name"),
        ("mem_param { exclude_blob: fc1 }", "f:1:27: expected true, false or a quoted name"),
        (
            "mem_param { exclude_blob: '' }",
            "f:1:27: mem_param.exclude_blob: expected a name, not ''",
        ),
        (
            "mem_param { optimize_train: true optimize_train: true }",
            "f:1:34: 'optimize_train'",
        ),
        ("mem_param {}\nmem_param {}", "f:2:1: 'mem_param' was already set at f:1:1"),
        ("mem_param { optimize_train true }", "f:1:28: expected : after 'optimize_train'"),
        ("mem_param { optimize_train: }", "f:1:29: expected a value for 'optimize_train'"),
        ("mem_param { optimize_train: [true] }", "f:1:29: expected a value for"),
        ('mem_param { exclude_blob: ["a" { ] }', "f:1:32: expected a value for"),
        ('mem_param { exclude_blob: ["a"', "f:1:28: the file ends after"),
        (
            r'mem_param { exclude_blob: "\xff" }',
            r'f:1:27: "\xff" is no UTF-8 text',
        ),
        (
            r'mem_param { exclude_blob: "\xgg" }',
            r'f:1:27: "\xgg" has an escape that is none',
        ),
        ("mem_param 3", "f:1:11: expected { after mem_param, not '3'"),
        ("mem_param {", "f:1:11: the file ends after '{'"),
        ("layer { mem_param { } }", "f:1:9: mem_param belongs to the net"),
        ("layer { ", "f: a brace is never closed"),
        ("}", "f:1:1: '}' closes nothing"),
        ('\nname: "open', "f:2:7: a quote is never closed"),
        ('name: "net"', "f: no mem_param block"),
        ("", "f: no mem_param block"),
    ],
)
def test_a_mistake_in_a_prototxt_is_named_with_its_place(text: str, message: str) -> None:
    assert message in str(refusal(text, read_prototxt))
