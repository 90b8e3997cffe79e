from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.errors import UsageError
from experiment.pipeline.recipes import copy_recipe, load_recipe
from experiment.sealing.canonical import encode_record
from tests.unit.pipeline.conftest import RECIPE, Bench

Refusal = Callable[..., str]
SHIPPED = Path(__file__).resolve().parents[3] / "recipes"


@pytest.fixture
def refusal(bench: Bench) -> Refusal:
    """Says what is said about a changed recipe; it names the file, has one line, exit code 2, and writes nothing."""

    def refuse(old: str = "", new: str = "", *, overrides: tuple[str, ...] = ()) -> str:
        text = RECIPE.read_text(encoding="utf-8")
        assert old in text
        RECIPE.write_text(text.replace(old, new, 1), encoding="utf-8")
        before = bench.files()
        with pytest.raises(UsageError) as caught:
            load_recipe(RECIPE, overrides)
        assert caught.value.exit_code == 2
        assert bench.files() == before
        message = str(caught.value)
        assert message.startswith(f"{RECIPE}: ") and "\n" not in message
        return message.removeprefix(f"{RECIPE}: ")

    return refuse


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.name)
def test_shipped_recipes_are_valid_and_named_like_their_files(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_an_unknown_key_is_refused_with_the_one_that_was_meant(refusal: Refusal) -> None:
    assert refusal("budget_hours", "budget_hour") == "unknown key 'budget_hour', did you mean 'budget_hours'?"


def test_an_unknown_nested_key_is_refused_with_the_one_that_was_meant(refusal: Refusal) -> None:
    assert "unknown key 'training.lora.rnak', did you mean 'rank'?" in refusal("rank = 16", "rnak = 16")


def test_an_unknown_key_of_an_arm_is_refused_with_its_position(refusal: Refusal) -> None:
    said = refusal("observation_weight = 0.005", "observation_wieght = 0.005")
    assert "unknown key 'arms.1.observation_wieght', did you mean 'observation_weight'?" in said


def test_an_unknown_key_beside_a_path_or_a_set_is_named_as_its_author_knows_it(refusal: Refusal) -> None:
    said = refusal("dev = { count = 64, seed = 104 }", "dev = { count = 64, sede = 104 }")
    assert "unknown key 'retention.dev.sede', did you mean 'seed'?" in said
    assert "EpisodeSet" not in said.partition(";")[0]


def test_an_unknown_key_of_a_world_is_held_against_that_world(refusal: Refusal) -> None:
    said = refusal('name = "german_tools"', 'name = "delta_world"\ncache = "x"')
    assert "unknown key 'world.cache', did you mean 'cache_dir'?" in said


def test_an_unknown_world_is_refused_with_those_there_are(refusal: Refusal) -> None:
    said = refusal('name = "german_tools"', 'name = "german"')
    assert said == "key 'world.name' is 'german', it must be one of 'german_tools', 'delta_world', 'nemo_gym'"


def test_an_unknown_key_like_no_other_is_refused_with_all_that_are_known(refusal: Refusal) -> None:
    said = refusal("stop_at = 2", "stop_at = 2\nxyzzy = 1")
    assert said == "unknown key 'qualification.xyzzy', known keys are steps, stop_at"


def test_a_missing_key_is_named(refusal: Refusal) -> None:
    assert refusal("kl = 0.1\n", "") == "key 'training.kl' is missing, add it"


def test_a_missing_section_is_named(refusal: Refusal) -> None:
    assert "key 'world' is missing, add it" in refusal("[world]", "[worlds]")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("steps = 64", 'steps = "64"', "key 'training.steps' is '64': input should be a valid integer"),
        ("steps = 64", "steps = 64.5", "key 'training.steps' is 64.5: input should be a valid integer"),
        ("steps = 64", "steps = 0", "key 'training.steps' is 0: input should be greater than or equal to 1"),
        ("batch_size = 16", "batch_size = 15", "key 'starter.skill.batch_size' is 15: input should be a multiple of 2"),
        ("steps = 64", "steps = 9007199254740992", "key 'training.steps' is 9007199254740992: input should be less"),
        ("kl = 0.1", "kl = true", "key 'training.kl' is True: input should be a valid number"),
        ("kl = 0.1", "kl = nan", "key 'training.kl' is nan: input should be a finite number"),
        ("kl = 0.1", "kl = -inf", "key 'training.kl' is -inf: input should be a finite number"),
        ('name = "quickstart"', 'name = "Quick Start"', "key 'name' is 'Quick Start': string should match pattern"),
        ('device = "cpu"', 'device = "tpu"', "key 'compute.device' is 'tpu': input should be 'cpu' or 'cuda'"),
        ('algorithm = "grpo"', 'algorithm = "ppo"', "key 'arms.0.algorithm' is 'ppo': input should be 'grpo' or"),
        ("schema_version = 1", "schema_version = 2", "key 'schema_version' is 2: input should be 1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_what_would(refusal: Refusal, old: str, new: str, said: str) -> None:
    assert said in refusal(old, new)


@pytest.mark.parametrize("moment", ["2026-10-20", "2026-10-20T10:00:00Z", "10:00:00"])
def test_a_date_or_time_is_refused_with_its_key(refusal: Refusal, moment: str) -> None:
    said = refusal("seed = 101", f"seed = {moment}")
    assert said == "key 'episodes.train.seed' is a date or time, put it in quotes"


def test_a_date_in_a_list_is_refused_with_its_position(refusal: Refusal) -> None:
    said = refusal("candidates = [32, 48, 64]", "candidates = [32, 2026-10-20]")
    assert said == "key 'checkpoints.candidates.1' is a date or time, put it in quotes"


def test_what_is_no_toml_is_refused_with_the_place(refusal: Refusal) -> None:
    said = refusal("schema_version = 1", "schema_version = ")
    assert said.startswith("not valid TOML: ") and "line 3" in said


def test_a_byte_order_mark_is_refused(bench: Bench) -> None:
    RECIPE.write_bytes(b"\xef\xbb\xbf" + RECIPE.read_bytes())
    with pytest.raises(UsageError, match=f"{RECIPE}: not valid TOML"):
        load_recipe(RECIPE)


def test_bytes_that_are_no_text_are_refused(bench: Bench) -> None:
    RECIPE.write_bytes(b"name = '\xff'")
    with pytest.raises(UsageError, match=f"{RECIPE}: not valid TOML"):
        load_recipe(RECIPE)


def test_a_missing_file_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"recipes/none.toml: cannot be read \(No such file or directory\)"):
        load_recipe(Path("recipes/none.toml"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("arms=[]",), "key 'arms' is empty, add at least one [[arms]] section"),
        (("training.gradient_accumulation=3",), "training.gradient_accumulation 3 is no divisor of the 16 rollouts"),
        (("episodes.train.count=255",), "episodes.train.count 255 is no multiple of training.prompts_per_step"),
        (("training.steps=63",), "checkpoints lie beyond training.steps 63"),
        (("checkpoints.diagnostic=65",), "checkpoints lie beyond training.steps 64"),
        (("checkpoints.candidates=[]",), "checkpoints.candidates is empty, name at least one step"),
        (("checkpoints.candidates=[48, 32]",), "checkpoints.candidates are not rising, sort them and remove doubles"),
        (("checkpoints.candidates=[32, 32]",), "checkpoints.candidates are not rising, sort them and remove doubles"),
        (("qualification.stop_at=4",), "qualification needs 0 < stop_at < steps <= training.steps"),
        (("qualification.steps=65",), "qualification needs 0 < stop_at < steps <= training.steps"),
        (
            ("sampling.temperature=0.7",),
            "arm 'echo': set sampling.temperature to 1.0, or observation_logits to 'tempered'",
        ),
        (("assessment.seeds=[42, 42]",), "assessment.seeds must be different and at least one"),
        (("assessment.seeds=[]",), "assessment.seeds must be different and at least one"),
        (("assessment.retention_seeds=[]",), "assessment.retention_seeds must be different and at least one"),
        (("assessment.retention_seeds=[7, 7]",), "assessment.retention_seeds must be different and at least one"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    refusal: Refusal, overrides: tuple[str, ...], said: str
) -> None:
    assert refusal(overrides=overrides) == said


def test_two_arms_of_one_name_are_refused(refusal: Refusal) -> None:
    assert refusal('name = "echo"', 'name = "grpo"') == "arms share a name (grpo, grpo), give each its own"


def test_a_weight_without_its_algorithm_is_refused(refusal: Refusal) -> None:
    assert "arm 'grpo': `observation_weight` belongs to algorithm \"echo\"" in refusal(
        'algorithm = "grpo"', 'algorithm = "grpo"\nobservation_weight = 0.1'
    )


def test_an_algorithm_without_its_weight_is_refused(refusal: Refusal) -> None:
    assert "arm 'echo': `observation_weight` belongs to" in refusal("observation_weight = 0.005\n", "")


def test_an_arm_cannot_be_called_baseline(refusal: Refusal) -> None:
    assert refusal('name = "grpo"', 'name = "baseline"') == "arm name 'baseline' is taken by the starting policy"


def test_overrides_take_numbers_lists_words_and_new_keys(bench: Bench) -> None:
    recipe = bench.recipe(
        "training.learning_rate=2e-4",
        f"supersedes={'ab' * 32}",
        "preregistration.exclusions=none",
        "health.max_gap_nats=5.0",
    )
    assert recipe.training.learning_rate == 2e-4
    assert recipe.checkpoints.candidates == (3, 6)
    assert recipe.supersedes == "ab" * 32
    assert recipe.preregistration.exclusions == "none"
    assert recipe.health.max_gap_nats == 5.0


def test_overrides_change_nothing_else(bench: Bench) -> None:
    changed = load_recipe(RECIPE, ["training.steps=128"])
    assert changed.model_copy(update={"training": load_recipe(RECIPE).training}) == load_recipe(RECIPE)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.steps", "--set training.steps: expected section.key=value"),
        ("=3", "--set =3: expected section.key=value"),
        ("name.first=x", "--set name.first=x: 'name' is a value, not a section"),
        ("arms.0.name=x", "--set arms.0.name=x: 'arms' is a value, not a section"),
        ("training.step=3", f"{RECIPE}: unknown key 'training.step', did you mean 'steps'?"),
        ("training.steps=many", f"{RECIPE}: key 'training.steps' is 'many': input should be a valid integer"),
        ("training.steps=", f"{RECIPE}: key 'training.steps' is ''"),
        ("training.steps=2026-01-01", f"{RECIPE}: key 'training.steps' is a date or time"),
    ],
)
def test_a_bad_override_is_refused(bench: Bench, override: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe(RECIPE, [override])
    assert said in str(caught.value)


def test_a_copied_recipe_differs_in_its_name_alone(bench: Bench) -> None:
    target = copy_recipe(RECIPE, "mine")
    assert target == Path("recipes/mine.toml")
    lines = zip(RECIPE.read_text().splitlines(), target.read_text().splitlines(), strict=True)
    assert [pair for pair in lines if pair[0] != pair[1]] == [('name = "quickstart"', 'name = "mine"')]
    assert encode_record(load_recipe(target).model_copy(update={"name": "quickstart"})) == encode_record(
        load_recipe(RECIPE)
    )


def test_a_copy_never_replaces_a_recipe(bench: Bench) -> None:
    before = bench.files()
    with pytest.raises(UsageError, match="recipes/quickstart.toml: exists already"):
        copy_recipe(RECIPE, "quickstart")
    assert bench.files() == before


@pytest.mark.parametrize("name", ["Mine", "my recipe", "../mine", "", r"a\1"])
def test_a_copy_with_a_name_that_does_not_fit_is_refused(bench: Bench, name: str) -> None:
    before = bench.files()
    with pytest.raises(UsageError, match="key 'name' is"):
        copy_recipe(RECIPE, name)
    assert bench.files() == before


def test_a_copy_whose_name_cannot_be_changed_is_refused(bench: Bench) -> None:
    RECIPE.write_text(RECIPE.read_text().replace('name = "quickstart"', "name = 'quickstart'", 1))
    with pytest.raises(UsageError, match="has no line"):
        copy_recipe(RECIPE, "mine")
