import subprocess
import sys
from ctypes.util import find_library
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from spikestill.common.environment import environment
from spikestill.common.errors import UserError
from spikestill.teacher.control import dm_control_tasks, gymnasium_tasks
from spikestill.teacher.control.environment import bounded
from spikestill.teacher.control.gymnasium_tasks import gymnasium_spec
from spikestill.teacher.control.simulator import cannot_draw, choose_gl

pytestmark = pytest.mark.skipif(
    find_spec("mujoco") is None or find_spec("dm_control") is None,
    reason="the MuJoCo simulators are not installed: make install, or pip install 'spikestill[control]'",
)
STATES = (*dm_control_tasks.TASKS, *gymnasium_tasks.TASKS)
DIMENSIONS = {
    "half_cheetah": (17, 6), "hopper": (11, 3), "swimmer": (8, 2), "walker2d": (17, 6), "ant": (105, 8),
    "cartpole_swingup": (5, 1), "reacher_easy": (6, 2), "cheetah_run": (17, 6), "finger_spin": (9, 2),
    "ball_in_cup_catch": (8, 2), "walker_walk": (24, 6),
}  # fmt: skip


def made(name, count) -> Any:
    return environment(name).make(None, count, 0)


def play(envs, actions, rows):
    found = []
    for action in actions[:rows]:
        envs.send(action)
        found.append(envs.receive())
    return found


def same(ours, theirs):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(ours, theirs, strict=True)
        for name in ("reward", "terminated", "truncated")
    ) and all(
        np.array_equal(a.observations[name], b.observations[name])
        for a, b in zip(ours, theirs, strict=True)
        for name in a.observations
    )


@pytest.mark.parametrize("name", STATES)
def test_a_restored_simulation_goes_on_exactly_as_the_one_that_was_saved(name):
    spec = environment(name)
    assert (sum(int(np.prod(f.shape)) for f in spec.fields), spec.actions.shape[0]) == DIMENSIONS[name]
    envs, others = spec.make(None, 2, 0), spec.make(None, 2, 0)
    envs.reset(np.array([3, 4]))
    others.reset(np.array([8, 9]))
    rng = np.random.default_rng(0)
    actions = np.stack([spec.actions.sample(rng, 2) for _ in range(80)])
    play(envs, actions, 23)
    before = envs.state()
    ended = play(envs, actions[23:], 40)
    # A new episode draws from the saved random numbers.
    again = envs.reset(None)
    spec.check(others.set_state(before))
    assert same(play(others, actions[23:], 40), ended)
    begun = others.reset(None)
    assert all(np.array_equal(begun[name], again[name]) for name in begun)
    envs.close()
    others.close()


def test_an_episode_is_cut_off_at_its_limit_and_the_next_begins_by_itself():
    envs = made("hopper", 2)
    envs.reset(np.array([0, 1]))
    envs.steps_N[1] = 998
    still = np.zeros((2, 3), np.float32)
    steps = play(envs, [still] * 3, 3)
    assert [step.truncated[1] for step in steps] == [False, True, False]
    assert not any(step.terminated[1] for step in steps)
    assert steps[2].reward[1] == 0.0
    assert envs.steps_N.tolist() == [3, 0]


def test_the_same_seed_gives_the_same_start_and_another_one_another():
    envs = made("walker_walk", 3)
    heights = envs.reset(np.array([5, 5, 6]))["velocity"], envs.reset(np.array([5, 5, 6]))["orientations"]
    assert np.array_equal(heights[1][0], heights[1][1])
    assert not np.array_equal(heights[1][0], heights[1][2])


def test_a_simulation_that_diverges_names_environment_field_and_step():
    envs = made("half_cheetah", 2)
    envs.reset(np.array([0, 1]))
    envs.tasks[1].simulator.data.qvel[:] = np.nan
    with pytest.raises(
        UserError, match=r"half_cheetah: environment 1 gave a \w+ that is not finite in step 1"
    ):
        play(envs, [np.zeros((2, 6))], 1)


def test_a_simulator_that_gives_up_names_environment_step_and_a_remedy_that_works():
    envs = made("cheetah_run", 2)
    envs.reset(np.array([0, 1]))
    play(envs, [np.zeros((2, 6))] * 2, 2)
    envs.tasks[1].simulator.data.qvel[:] = np.nan
    with pytest.raises(
        UserError,
        match=r"cheetah_run: environment 1 gave up \(.*mjWARN_BADQVEL.*\) in step 3 of its episode: the simulation "
        r"diverged. Try another --seed",
    ):
        play(envs, [np.zeros((2, 6))], 1)


def test_a_box_without_bounds_names_the_action():
    with pytest.raises(UserError, match=r"slide: action 1 has the bounds -inf..1, finite low < high wanted"):
        bounded("slide", [-1, -np.inf], [1, 1])


def test_a_task_of_ones_own_without_bounds_is_refused_and_one_with_bounds_plays():
    import gymnasium

    def unbounded(**options):
        task = gymnasium.make("HalfCheetah-v5", **options).unwrapped
        task.action_space = gymnasium.spaces.Box(-1.0, np.array([1, 1, np.inf, 1, 1, 1]), dtype=np.float32)
        return task

    try:
        gymnasium.register("Unbounded-v0", unbounded, max_episode_steps=10)
        with pytest.raises(
            UserError, match=r"mine: action 2 has the bounds -1..inf, finite low < high wanted"
        ):
            gymnasium_spec("mine", "Unbounded-v0")
        gymnasium.register("Unlimited-v0", unbounded)
        with pytest.raises(UserError, match=r"mine: Unlimited-v0 has no max_episode_steps"):
            gymnasium_spec("mine", "Unlimited-v0")
    finally:
        for name in ("Unbounded-v0", "Unlimited-v0"):
            gymnasium.registry.pop(name, None)
    envs = gymnasium_spec("mine", "HalfCheetah-v5").make(None, 1, 0)
    envs.reset(np.array([0]))
    play(envs, [np.zeros((1, 6))], 1)
    envs.close()


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UserError, match=r"'cheetah_runs'.*[Dd]id you mean 'cheetah_run'"):
        environment("cheetah_runs")


@pytest.mark.skipif(not choose_gl(), reason="no OpenGL library: apt-get install libosmesa6")
def test_pixels_stack_three_frames_and_repeat_the_action():
    spec, envs = environment("cartpole_swingup_pixels"), made("cartpole_swingup_pixels", 1)
    first = envs.reset(np.array([0]))
    spec.check(first)
    assert not first["pixels"][0, :2].any()
    assert first["pixels"][0, 2].any()
    (step,) = play(envs, [np.ones((1, 1))], 1)
    assert np.array_equal(step.observations["pixels"][0, 1], first["pixels"][0, 2])
    assert envs.steps_N.tolist() == [8]
    assert spec.decisions_per_s == pytest.approx(12.5)
    assert envs.render(0).shape == (240, 320, 3)
    envs.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere GLFW needs no DISPLAY")
def test_where_there_is_nothing_to_draw_with_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("spikestill.teacher.control.simulator._libraries", list)
    for name in ("MUJOCO_GL", "DISPLAY"):
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    assert choose_gl() == ""
    error = cannot_draw("reacher_easy")
    assert error.what == "reacher_easy cannot be drawn: there is no display and no OpenGL library"
    assert "apt-get install libosmesa6" in str(error.remedy)


@pytest.mark.parametrize(
    ("gl", "message"),
    [
        pytest.param(
            "disable", "reacher_easy cannot be drawn: there is no display and no OpenGL library",
            marks=pytest.mark.skipif(bool(choose_gl()), reason="an OpenGL library is here"),
        ),
        pytest.param(
            "glfw", "reacher_easy cannot be drawn with MUJOCO_GL=glfw: ",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="elsewhere GLFW needs no DISPLAY"),
        ),
        pytest.param(
            "osmesa", "reacher_easy: MuJoCo does not begin with MUJOCO_GL=osmesa: AttributeError",
            marks=pytest.mark.skipif(bool(find_library("OSMesa")), reason="OSMesa is here"),
        ),
    ],
)  # fmt: skip
def test_without_opengl_drawing_says_what_to_install(gl, message):
    code = (
        "from spikestill.common.environment import environment\n"
        "envs = environment('reacher_easy').make(None, 1, 0); envs.reset(None)\n"
        "envs.render(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"MUJOCO_GL": gl, "PATH": ""}, capture_output=True, text=True
    )
    assert message in done.stderr
    assert "apt-get install libosmesa6" in done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.skipif(not choose_gl(), reason="no OpenGL library: apt-get install libosmesa6")
@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton: it comes with PyTorch's builds for GPUs")
def test_optimisers_can_be_made_after_a_picture_was_drawn():
    code = (
        "from spikestill.common.environment import environment\n"
        "envs = environment('reacher_easy').make(None, 1, 0); envs.reset(None); first = envs.render(0)\n"
        "import torch\n"
        "torch.optim.Adam([torch.zeros(1, requires_grad=True)])\n"
        "import triton\n"
        "assert (envs.render(0) == first).all()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not choose_gl(), reason="no OpenGL library: apt-get install libosmesa6")
def test_drawing_that_is_forbidden_is_told_so(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(UserError, match=r"drawn: MUJOCO_GL=disable forbids it. Set MUJOCO_GL=(osmesa|egl)"):
        made("reacher_easy", 1).render(0)


@pytest.mark.skipif(not choose_gl(), reason="no OpenGL library: apt-get install libosmesa6")
def test_the_camera_goes_with_a_robot_that_runs_away():
    envs = made("half_cheetah", 1)
    envs.reset(np.array([0]))
    environment = envs.tasks[0].environment
    moved = environment.data.qpos + np.eye(len(environment.data.qpos))[0] * 30
    environment.set_state(moved, environment.data.qvel)
    red, _, blue = envs.render(0).astype(int).transpose(2, 0, 1)
    assert (red - blue > 30).sum() > 1000  # the robot alone is brown: 30 m on it was out of the picture
    envs.close()


@pytest.mark.skipif(not choose_gl(), reason="no OpenGL library: apt-get install libosmesa6")
def test_a_picture_drawn_beside_the_steps_is_that_of_the_state_it_was_begun_in():
    envs = made("cartpole_swingup", 1)
    envs.reset(np.array([0]))
    wanted = envs.render(0)
    envs.close()
    first = envs.render_soon(0)
    assert np.array_equal(first, wanted)
    play(envs, [np.ones((1, 1))] * 40, 40)
    envs.render_soon(0)
    simulator = envs.tasks[0].simulator
    assert simulator._drawing is not None
    simulator._drawing.result()
    moved = envs.render_soon(0)
    assert not np.array_equal(moved, wanted)
    assert np.array_equal(envs.render(0), moved)
    envs.close()
