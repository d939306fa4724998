"""Checkpoints and files of a run: whole or absent, equal to the bit, and never trusted blindly."""

from __future__ import annotations

import json
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxtag import checkpoint
from jaxtag.checkpoint import CheckpointError
from jaxtag.config import InputError
from jaxtag.files import FileError
from jaxtag.step import TrainState


def state_of(value: float = 0.1) -> TrainState:
    """A tree of every kind that a training state holds."""
    kernel = np.array([[value, -0.0], [np.nan, 1e-45]], np.float32)
    params = {"head": {"kernel": kernel, "bias": np.zeros(2, np.float32)}, "layers": {0: kernel[0]}}
    return TrainState(params, ({"mu": params}, np.int32(3)), np.zeros((), np.int32) + 7)


def refused(path, template) -> str:
    with pytest.raises(CheckpointError) as error:
        checkpoint.load_tree(path, template)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value)


class TestTree:
    def test_a_tree_comes_back_equal_to_the_bit(self, tmp_path):
        saved = state_of()
        checkpoint.save_tree(tmp_path / "state", saved)
        loaded = checkpoint.load_tree(tmp_path / "state", saved)
        assert jax.tree.structure(loaded) == jax.tree.structure(saved)
        for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(saved), strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert one.tobytes() == other.tobytes()

    def test_a_transposed_view_is_saved_as_it_reads_not_as_it_lies(self, tmp_path):
        view = {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3).T}
        checkpoint.save_tree(tmp_path / "state", view)
        assert (checkpoint.load_tree(tmp_path / "state", view)["kernel"] == view["kernel"]).all()

    def test_a_tree_on_a_device_is_loaded_into_its_shapes_alone(self, tmp_path):
        params = {"head": {"kernel": jnp.arange(6.0).reshape(2, 3)}}
        checkpoint.save_tree(tmp_path / "model", params)
        template = jax.eval_shape(lambda: params)
        loaded = checkpoint.load_tree(tmp_path / "model", template)
        np.testing.assert_array_equal(loaded["head"]["kernel"], params["head"]["kernel"])

    def test_tensors_are_named_by_their_path(self, tmp_path):
        checkpoint.save_tree(tmp_path / "state", state_of())
        names = safetensors.numpy.load_file(tmp_path / "state").keys()
        assert {"params.head.kernel", "params.layers.0", "opt_state.0.mu.head.bias"} <= names

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ({"a": np.zeros(2), "b": np.zeros(2)}, "lacks a tensor: b"),
            ({}, "has a tensor that the model lacks: a"),
            ({"b": np.zeros(2)}, "has a tensor that the model lacks: a"),
            ({"a": np.zeros(3)}, r"a: expected float64 (3,), found float64 (2,)"),
            ({"a": np.zeros((2, 1))}, r"a: expected float64 (2, 1), found float64 (2,)"),
            ({"a": np.zeros(2, np.float32)}, r"a: expected float32 (2,), found float64 (2,)"),
        ],
    )
    def test_a_tensor_that_does_not_fit_is_named(self, template, message, tmp_path):
        checkpoint.save_tree(tmp_path / "model", {"a": np.zeros(2)})
        assert message in refused(tmp_path / "model", template)

    def test_a_missing_file_is_named(self, tmp_path):
        assert "expected a finished epoch's model, found none" in refused(tmp_path / "none", {})

    @pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100])
    def test_a_file_that_is_no_safetensors_is_named(self, content, tmp_path):
        path = tmp_path / "model"
        path.write_bytes(content)
        assert "expected a safetensors file" in refused(path, {})

    def test_a_file_cut_short_is_named(self, tmp_path):
        path = tmp_path / "model"
        checkpoint.save_tree(path, {"a": np.zeros(9)})
        path.write_bytes(path.read_bytes()[:-5])
        assert "expected a safetensors file" in refused(path, {"a": np.zeros(9)})


class TestWriting:
    def test_a_failed_write_leaves_the_old_content_and_nothing_else(self, tmp_path, monkeypatch):
        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        path = tmp_path / "a.json"
        checkpoint.write_json(path, "old")
        monkeypatch.setattr(os, "fsync", full)
        message = f"^{path}: expected a file that can be written, found 'No space left on device'"
        with pytest.raises(FileError, match=message):
            checkpoint.write_json(path, "new")
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
        assert checkpoint.read_json(path) == "old"

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_json_has_no_number_for_is_refused_and_the_old_content_stays(
        self, value, tmp_path
    ):
        path = tmp_path / "a.json"
        checkpoint.write_json(path, "old")
        with pytest.raises(ValueError, match="not JSON compliant"):
            checkpoint.write_json(path, {"loss": [value]})
        assert checkpoint.read_json(path) == "old"

    def test_a_link_is_followed_and_stays_a_link(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path / "a.json")
        checkpoint.write_json(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
        assert checkpoint.read_json(tmp_path / "a.json") == "new"

    def test_json_comes_back(self, tmp_path):
        value = {"a": [1, 0.1, None, True], "ü": "\u2028"}
        checkpoint.write_json(tmp_path / "a.json", value)
        assert checkpoint.read_json(tmp_path / "a.json") == value

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "expected a file of the run, found No such file"),
            (b"{", "expected JSON"),
            (b"\xff", "expected JSON"),
        ],
    )
    def test_a_file_that_is_no_json_is_named(self, content, message, tmp_path):
        path = tmp_path / "a.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"^{path}: {message}"):
            checkpoint.read_json(path)


class TestCheckpoint:
    def test_nothing_is_loaded_where_there_is_none(self, tmp_path):
        assert checkpoint.load_newest(tmp_path / "none", state_of()) is None
        assert checkpoint.load_newest(tmp_path, state_of()) is None

    def test_state_and_position_come_back(self, tmp_path):
        position = {"step": 7, "best_score": 0.1, "best_dev": None}
        checkpoint.save(tmp_path, 1, state_of(), position)
        state, found = checkpoint.load_newest(tmp_path, state_of(0.0))
        assert found == position
        np.testing.assert_array_equal(state.params["head"]["kernel"][0, 0], np.float32(0.1))

    def test_a_newer_checkpoint_replaces_the_older(self, tmp_path):
        checkpoint.save(tmp_path, 1, state_of(1.0), {"step": 1})
        checkpoint.save(tmp_path, 2, state_of(2.0), {"step": 2})
        assert [entry.name for entry in tmp_path.iterdir()] == ["000002"]
        state, _ = checkpoint.load_newest(tmp_path, state_of())
        assert state.params["head"]["kernel"][0, 0] == 2.0

    def test_a_checkpoint_is_safetensors_and_json(self, tmp_path):
        checkpoint.save(tmp_path, 1, state_of(), {"step": 1})
        names = {entry.name for entry in (tmp_path / "000001").iterdir()}
        assert names == {"state.safetensors", "position.json", "manifest.json"}

    def test_checkpoints_are_numbered_in_six_digits_and_more_where_they_need_them(self, tmp_path):
        for number, name in ((3, "000003"), (1_000_000, "1000000")):
            checkpoint.save(tmp_path, number, state_of(), {"step": number})
            assert [entry.name for entry in tmp_path.iterdir()] == [name]
            assert checkpoint.load_newest(tmp_path, state_of())[1] == {"step": number}

    def test_a_checkpoint_whose_removal_was_interrupted_is_none(self, tmp_path):
        checkpoint.save(tmp_path / "a", 1, state_of(), {"step": 1})
        (tmp_path / "a" / "000001" / "manifest.json").unlink()
        assert checkpoint.load_newest(tmp_path / "a", state_of()) is None
        checkpoint.save(tmp_path / "a", 2, state_of(), {"step": 2})
        assert checkpoint.load_newest(tmp_path / "a", state_of())[1] == {"step": 2}

    def test_of_a_checkpoint_that_is_removed_the_manifest_goes_first(self, tmp_path, monkeypatch):
        checkpoint.save(tmp_path, 1, state_of(), {"step": 1})
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed just before it
        checkpoint.save(tmp_path, 2, state_of(), {"step": 2})
        left = {entry.name for entry in (tmp_path / "000001").iterdir()}
        assert left == {"state.safetensors", "position.json"}

    @pytest.mark.parametrize("name", ["state.safetensors", "position.json", "manifest.json"])
    def test_an_older_damaged_checkpoint_does_not_hinder_the_newest(self, name, tmp_path):
        for number, directory in ((1, "a"), (2, "b")):
            checkpoint.save(tmp_path / directory, number, state_of(), {"step": number})
        older = tmp_path / "b" / "000001"
        (tmp_path / "a" / "000001").rename(older)
        (older / name).write_bytes(b"damaged")
        assert checkpoint.load_newest(tmp_path / "b", state_of())[1] == {"step": 2}

    def test_of_two_that_an_interruption_left_the_later_one_is_loaded(self, tmp_path):
        for step, directory in ((9999, "a"), (10_000, "b")):
            checkpoint.save(tmp_path / directory, step, state_of(), {"step": step})
        (tmp_path / "a" / "009999").rename(tmp_path / "b" / "009999")
        assert checkpoint.load_newest(tmp_path / "b", state_of())[1] == {"step": 10_000}

    def test_what_an_interrupted_save_left_does_no_harm(self, tmp_path):
        checkpoint.save(tmp_path, 1, state_of(1.0), {"step": 1})
        leftover = tmp_path / ".000002.tmp"
        leftover.mkdir()
        (leftover / "state.safetensors").write_bytes(b"half")
        assert checkpoint.load_newest(tmp_path, state_of())[1] == {"step": 1}
        checkpoint.save(tmp_path, 2, state_of(2.0), {"step": 2})
        assert checkpoint.load_newest(tmp_path, state_of())[1] == {"step": 2}
        assert [entry.name for entry in tmp_path.iterdir()] == ["000002"]

    def test_a_whole_save_that_was_not_renamed_does_no_harm(self, tmp_path):
        checkpoint.save(tmp_path, 2, state_of(2.0), {"step": 2})
        (tmp_path / "000002").rename(tmp_path / ".000002.tmp")
        checkpoint.save(tmp_path, 2, state_of(2.0), {"step": 2})
        assert checkpoint.load_newest(tmp_path, state_of())[1] == {"step": 2}

    def test_a_save_without_room_is_an_error_and_leaves_the_older_checkpoint(
        self, tmp_path, monkeypatch
    ):
        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        checkpoint.save(tmp_path, 1, state_of(), {"step": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(InputError, match="No space left on device"):
                checkpoint.save(tmp_path, 2, state_of(), {"step": 2})
        assert checkpoint.load_newest(tmp_path, state_of())[1] == {"step": 1}

    @pytest.mark.parametrize("name", ["state.safetensors", "position.json", "manifest.json"])
    def test_any_flipped_bit_is_found(self, name, tmp_path):
        checkpoint.save(tmp_path, 1, {"a": np.ones(2)}, {"step": 1, "seconds": 0.5})
        path = tmp_path / "000001" / name
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=re.escape(f"{path.parent}/")):
                checkpoint.load_newest(tmp_path, {"a": np.ones(2)})

    def test_a_file_that_the_manifest_names_but_that_is_gone_is_found(self, tmp_path):
        checkpoint.save(tmp_path, 1, state_of(), {"step": 1})
        (tmp_path / "000001" / "state.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"state\.safetensors: damaged.* remove "):
            checkpoint.load_newest(tmp_path, state_of())

    def test_the_manifest_has_size_and_checksum_of_each_file(self, tmp_path):
        checkpoint.save(tmp_path, 1, state_of(), {"step": 1})
        manifest = json.loads((tmp_path / "000001" / "manifest.json").read_bytes())
        assert manifest["position.json"]["size"] == len(b'{\n "step": 1\n}\n')
        assert manifest.keys() == {"state.safetensors", "position.json"}
