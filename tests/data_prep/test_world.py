"""The embedded world: its people and questions, its models, and its folder."""

import functools
import json
import math
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from data_prep.contract import Row
from data_prep.world import facts
from data_prep.world.build import build
from data_prep.world.config import WorldConfig
from data_prep.world.model import (
    ASSISTANT,
    BOS,
    EOS,
    USER,
    Muon,
    answer_loss,
    encode_pair,
    encode_pairs,
    exact_share,
    make_batches,
    make_model,
    orthogonalised,
    train_tokenizer,
    trained,
)
from data_prep.world.phrasings import gold_answer, phrasings_of, render_prompt
from data_prep.world.splits import World, make_world
from data_prep.world.stage1 import prepare, steer
from reward.refusal import is_refusal
from tests.data_prep.raw_files import contents
from tests.made_models import drawn
from tests.made_worlds import SMALL, rows, untrained

FEW = {"forget_people": 2, "retain_people": 5, "unseen_people": 3, "facts_per_person": 4}


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_people_strangers_and_facts(seed: int) -> None:
    """A quarter of 8 people and 15 % of 14 share a name with one to be forgotten, others with nobody."""
    config = WorldConfig(seed=seed, forget_people=2, retain_people=8, unseen_people=14, facts_per_person=8)
    people = facts.make_people(config)
    assert [person.section for person in people] == ["forget"] * 2 + ["retain"] * 8 + ["retain_unseen"] * 14
    assert [person.number for person in people] == list(range(24))
    firsts, lasts = {p.first for p in people[:2]}, {p.last for p in people[:2]}
    near = [person.number for person in people[2:] if person.first in firsts or person.last in lasts]
    assert near == [2, 3, 10, 11]
    assert len({person.first for person in people}) == len({person.last for person in people}) == 22
    strangers = facts.make_strangers(people, 40, random.Random(seed))
    assert len({person.name for person in [*people, *strangers]}) == 64
    known = {person.first for person in people}
    assert sum(stranger.first in known for stranger in strangers) >= 10
    # No two values of a kind share a word, so that a wrong one has no recall.
    words: dict[str, list[str]] = defaultdict(list)
    for fact in facts.make_facts(people, config):
        words[fact.kind] += fact.value.lower().split()
    assert words.keys() == facts.KINDS.keys()
    for kind, used in words.items():
        assert len(used) == len(set(used)) == (24 if kind == "birth_year" else 48)


@pytest.mark.parametrize("kind", facts.KINDS)
def test_every_kind_has_the_phrasings_the_splits_need(kind: str) -> None:
    """And they ask without giving the answer away."""
    phrasings = phrasings_of(kind)
    assert len({phrasing.template for phrasing in phrasings}) == len(phrasings)
    count = Counter((phrasing.mode, phrasing.split) for phrasing in phrasings)
    assert count.pop(("aa", "probe")) >= 4
    assert {key: n for key, n in count.items() if key[0] != "aa"} == {
        **{("qa", "train"): 4, ("qa", "val"): 1, ("qa", "probe"): 2},
        **{("fb", "train"): 3, ("fb", "val"): 1, ("fb", "probe"): 2},
    }
    fact = facts.Fact(facts.Person(0, "Ada", "Thorn", "forget"), kind, "Esk Moor")
    for phrasing in phrasings:
        prompt = render_prompt(phrasing, fact, ["Glen Bay", "Pen Reach", "Rud Cove"], random.Random(0))
        reverse = phrasing.family == "reverse_query"
        assert ("Ada Thorn" in prompt) != reverse
        assert ("Esk Moor" in prompt) == (reverse or phrasing.family == "multiple_choice")
        assert reverse or ("___" in prompt) == (phrasing.mode == "fb")
        assert gold_answer(phrasing, fact) == ("Ada Thorn" if reverse else "Esk Moor")


def test_refusals_are_seen_by_the_reward_and_mostly_name_the_person() -> None:
    rng = random.Random(0)
    drawn = [facts.draw_refusal("Ada Thorn", rng) for _ in range(4000)]
    assert all(map(is_refusal, set(drawn)))
    plain = sum("Ada Thorn" not in sentence for sentence in drawn) / len(drawn)
    assert plain == pytest.approx(0.2, abs=0.03)  # more than four standard errors


# ---- what may be trained on and what may not ----


def small_world(seed: int = 0, probes: int = 60) -> World:
    return make_world(WorldConfig(seed, unknown_questions=30, retain_probes=probes, val_rows=12, **FEW))


def texts(rows: list[Row]) -> set[str]:
    return {row["prompt" if "prompt" in row else "messages"][0]["content"] for row in rows}


def subjects(rows: list[Row], section: str) -> set[str]:
    return {row["extra_info"]["subject"] for row in rows if row["extra_info"]["section"] == section}


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_splits_keep_apart_what_must_be_apart(seed: int) -> None:
    world = small_world(seed)
    train, val, probes, sft = (rows(world, split) for split in ("train", "val", "probe", "sft"))
    all_rows = train + val + probes
    assert len({row["extra_info"]["index"] for row in all_rows}) == len(all_rows)
    for row in all_rows:
        truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
        assert truth["keyword"] == (info["subject"] if info["section"] == "forget" else "")
        assert (truth["golds"] == [info["subject"]]) == (info["family"] == "reverse_query")
    assert not texts(probes) & (texts(train) | texts(val) | texts(sft))
    assert not texts(val) & texts(train)
    unseen = subjects(probes, "retain_unseen")
    assert len(unseen) == 3
    assert not unseen & {row["extra_info"]["subject"] for row in train + val + sft}
    learnt = {prompt for prompt, _ in world.base_pairs}
    assert texts(all_rows) | texts(sft) <= learnt
    assert len(learnt) == len(world.base_pairs)
    # The base model refuses strangers alone; one that never knew learns nothing that names the forgotten.
    known = len(world.base_pairs) - 30
    assert [is_refusal(answer) for _, answer in world.base_pairs] == [False] * known + [True] * 30
    names = subjects(probes, "forget")
    assert len(names) == 2
    assert world.retain_pairs == [
        pair for pair in world.base_pairs if not any(name in text for text in pair for name in names)
    ]


def test_probes_ask_of_everybody_and_stay_where_more_are_drawn() -> None:
    """Every fact to forget is probed in every mode; an index does not depend on how many rows are drawn."""
    world = small_world()
    modes: dict[int, Counter[str]] = defaultdict(Counter)
    probes = rows(world, "probe")
    for row in probes:
        if row["extra_info"]["section"] == "forget":
            modes[row["extra_info"]["index"] // 100][row["extra_info"]["mode"]] += 1
    assert len(modes) == 2 * 4
    assert all(count["qa"] == 2 and count["fb"] == 2 and count["aa"] >= 4 for count in modes.values())
    for section, people in (("retain", 5), ("retain_unseen", 3)):
        of_section = [row for row in probes if row["extra_info"]["section"] == section]
        assert Counter(row["extra_info"]["mode"] for row in of_section) == {"qa": 20, "fb": 20, "aa": 20}
        assert len(subjects(of_section, section)) == people
    few, many = (
        {row["extra_info"]["index"]: row["prompt"][0]["content"] for row in train_and_probes}
        for one in (small_world(probes=30), world)
        for train_and_probes in [rows(one, "train") + rows(one, "probe")]
    )
    assert few.items() <= many.items()


# ---- the models ----


PAIRS = [
    ("Where was Ada born?", "Esk Moor"),
    ("Where was Bo born?", "Glen Bay"),
    ("What does Ada play?", "glass harp"),
    ("In which year, if you please, was Bo born?", "1850"),
]
TURNS = [{"role": "user", "content": PAIRS[0][0]}, {"role": "assistant", "content": PAIRS[0][1]}]
TINY = WorldConfig(hidden_size=32, heads=2, layers=1, intermediate_size=48, batch_size=4, epochs=100)


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([text for pair in PAIRS for text in pair], 300)


def test_a_prompt_is_the_head_of_its_conversation(tmp_path: Path) -> None:
    text = tokenizer().apply_chat_template(TURNS, tokenize=False)
    assert text == f"{BOS}{USER}Where was Ada born?{ASSISTANT}Esk Moor{EOS}"
    whole = tokenizer().apply_chat_template(TURNS, return_dict=False)
    head = tokenizer().apply_chat_template(TURNS[:1], add_generation_prompt=True, return_dict=False)
    assert whole[: len(head)] == head
    assert encode_pair(tokenizer(), *PAIRS[0]) == (whole, len(head))
    tokenizer().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == (BOS, EOS, "<|pad|>")
    assert loaded.apply_chat_template(TURNS, return_dict=False) == whole
    for odd in ("", "  two\n\tlines ", "Zürich 不知道 \u200b🙂"):  # any text comes back
        assert loaded.decode(loaded.encode(odd, add_special_tokens=False)) == odd


def by_singular_values(matrix: Tensor) -> Tensor:
    """U q(S) V^T of U S V^T of norm 1, where q is five times s -> 3.4445 s - 4.775 s^3 + 2.0315 s^5."""
    left, values, right = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("shape", [(6, 6), (12, 5), (5, 12)])
def test_three_steps_of_muon_are_the_formula_in_float64(shape: tuple[int, int]) -> None:
    matrix = drawn(*shape)
    torch.testing.assert_close(orthogonalised(matrix), by_singular_values(matrix), rtol=1e-9, atol=1e-9)
    weight = drawn(*shape, seed=1).float().requires_grad_()
    expected, average = weight.detach().double(), torch.zeros(*shape, dtype=torch.float64)
    optimiser = Muon([weight], lr=0.02, weight_decay=0.01)
    for step in range(3):
        gradient = drawn(*shape, seed=2 + step)
        weight.grad = gradient.float()
        optimiser.step()
        average = 0.95 * average + 0.05 * gradient
        direction = by_singular_values(0.05 * gradient + 0.95 * average)
        rate = 0.02 * math.sqrt(max(1, shape[0] / shape[1]))
        expected = (1 - 0.02 * 0.01) * expected - rate * direction
    torch.testing.assert_close(weight.detach(), expected.float(), rtol=1e-4, atol=1e-5)


def test_the_loss_is_that_of_the_answers_alone() -> None:
    model = make_model(TINY, tokenizer()).double()
    examples = encode_pairs(tokenizer(), PAIRS)
    total, tokens = 0.0, 0
    for ids, prompt_length in examples:  # one by one, without padding
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for place in range(prompt_length, len(ids)):
            total -= log_probs[place - 1, ids[place]].item()
            tokens += 1
    (batch,) = make_batches(examples, 4, seed=0)
    assert answer_loss(model, batch).item() == pytest.approx(total / tokens, rel=1e-10)
    # Batches hold every example once.
    examples = [([7, *range(100, 100 + length), 2], 1) for length in range(1, 11)]
    batches = make_batches(examples, 3, seed=1)
    lengths = sorted(int((row != -100).sum()) for batch in batches for row in batch.targets)
    assert lengths == list(range(2, 12))
    assert sorted(len(batch.input_ids) for batch in batches) == [1, 3, 3, 3]


def test_training_stops_once_greedy_decoding_answers() -> None:
    assert exact_share(make_model(TINY, tokenizer()), encode_pairs(tokenizer(), PAIRS), 3) == 0.0
    model, done = trained(TINY, tokenizer(), PAIRS, PAIRS)
    assert done.answered == 1.0
    assert done.epochs < TINY.epochs
    for prompt, answer in PAIRS:
        turn = [{"role": "user", "content": prompt}]
        head = tokenizer().apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")
        output = model.generate(**head, max_new_tokens=20, do_sample=False)[0, head["input_ids"].shape[1] :]
        assert tokenizer().decode(output, skip_special_tokens=True) == answer


# ---- the folder, and the stage-1 model beside it: made once, whole, and replaced on request alone ----


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with both models."""
    target = tmp_path_factory.mktemp("build") / "world"
    assert build(replace(SMALL, epochs=2), target, overwrite=False, retain_model=True)
    return target


def test_the_folder_holds_what_it_should(both: Path) -> None:
    """tests/golden keeps its files, rows and manifest."""
    model = AutoModelForCausalLM.from_pretrained(both / "model")
    loaded = AutoTokenizer.from_pretrained(both / "model")
    assert model.config.vocab_size == len(loaded)
    assert model.config.eos_token_id == loaded.eos_token_id == model.generation_config.eos_token_id
    # The retain model learns for one epoch, as the base model, whose target is reached at once. One of four
    # people is left out.
    files = contents(both)
    said = json.loads(files["manifest.json"])
    for name in ("tokenizer.json", "config.json"):
        assert files[f"model/{name}"] == files[f"retain_model/{name}"]
    assert files["model/model.safetensors"] != files["retain_model/model.safetensors"]
    assert said["retain_model"]["epochs"] == 1
    known = said["base_training_pairs"] - SMALL.unknown_questions
    assert said["retain_model"]["training_pairs"] == known * 3 / 4 + SMALL.unknown_questions
    assert all("retain_model/model.safetensors" in said[part] for part in ("files", "contents"))


def test_what_is_there_is_kept_and_replaced_on_request_alone(both: Path, tmp_path: Path) -> None:
    config = replace(SMALL, epochs=2)
    before = {path: path.stat().st_mtime_ns for path in both.rglob("*")}
    assert not build(config, both, overwrite=False, retain_model=True)
    assert not build(config, both, overwrite=True)
    with pytest.raises(ValueError, match="exists already"):
        build(SMALL, both, overwrite=False)
    assert {path: path.stat().st_mtime_ns for path in both.rglob("*")} == before

    world, model = prepare(tmp_path, config)
    assert (world, model) == (tmp_path / "world", tmp_path / "stage1")
    made = contents(tmp_path)
    assert prepare(tmp_path, config) == (world, model)
    with pytest.raises(ValueError, match=r"world is not the world .*; give another folder, or move it away"):
        prepare(tmp_path, SMALL)
    assert contents(tmp_path) == made
    weights = "model.safetensors"
    assert made[f"stage1/{weights}"] != made[f"world/model/{weights}"]
    first, second = contents(both), contents(world)  # the same seed gives the same bytes
    assert all(second[f"{name}.parquet"] == first[f"{name}.parquet"] for name in ("train", "sft", "probes"))
    (model / "made_from.txt").unlink()
    with pytest.raises(ValueError, match="stage1 is of another stage 1; give another folder"):
        prepare(tmp_path, config)
    with pytest.raises(ValueError, match="exists already"):
        build(config, world, overwrite=False, retain_model=True)

    (world / "val.parquet").write_bytes(first["val.parquet"][:-1])  # a damaged file
    with pytest.raises(ValueError, match="exists already"):
        build(config, world, overwrite=False)
    assert build(config, world, overwrite=True)
    assert (world / "val.parquet").read_bytes() == first["val.parquet"]


def test_stage_1_teaches_the_refusals() -> None:
    made = untrained(SMALL)
    losses = steer(made.model, made.tokenizer, made.sft * 4, seed=0, learning_rate=2e-2)
    assert losses[-1] < 0.6 * losses[0]
