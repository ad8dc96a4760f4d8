"""The kernels on a processor with AVX2 only, no AVX-512, no bf16 products; another x86 processor stands in for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spikestill.common.vectors import vector_lanes

ENVIRONMENT = {
    "NUMBA_CPU_NAME": "znver3",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,"
    "+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}  # fmt: skip
OFTEN = (
    "deploy/test_packed_kernel.py::test_any_feature_count",
    "deploy/test_packed_kernel.py::test_popcount_counts_ones",
    "deploy/test_simulator.py::test_plays_like_the_net_and_like_the_naive_interpreter[truenorth]",
    "deploy/test_transduction.py::test_equals_the_naive_layer_on_table_1[1chip]",
    "student/test_grouped.py::test_a_tile_of_pairs_is_the_matrix_product",
    "student/test_grouped.py::test_a_tile_of_products_is_the_matrix_product",
    # MKL's products take six rows at a time there, and a row of another six may be rounded differently.
    "teacher/test_evaluation.py::test_a_stacks_q_values_do_not_depend_on_those_beside_it_nor_on_the_cores[fp32]",
    "teacher/test_feature_norm.py::test_a_place_where_all_features_are_equal_is_the_shift",
    "teacher/test_feature_norm.py::test_result_and_gradients_are_pytorchs",
)
SELDOM = (
    "common/precision/test_fixed_fast.py::test_adam_is_the_reference_bit_for_bit",
    "common/precision/test_fixed_fast.py::test_layers_are_the_reference_bit_for_bit",
    "runtime/test_fixed.py::test_reference_kernel_and_pytorch_give_the_same_integers[True-8]",
    "student/test_grouped.py::test_group_by_group_is_what_convolutions_give[1chip-torch.float32-squares]",
    "student/test_grouped.py::test_group_by_group_is_what_convolutions_give[small-torch.float32-squares]",
    "student/test_grouped.py::test_products_of_pairs_are_those_of_single_numbers[pixels]",
    "student/test_grouped.py::test_products_of_pairs_are_those_of_single_numbers[spikes]",
    "teacher/control/test_program.py::test_a_program_gives_what_its_operations_give_bit_for_bit[ddpg-fp16]",
    "teacher/control/test_program.py::test_a_program_gives_what_its_operations_give_bit_for_bit[sac-fp32]",
    "teacher/test_weight_passes.py::test_the_step_is_pytorchs_adam",
    "teacher/test_weight_passes.py::test_the_sum_of_the_shares_is_exact_and_the_norm_its_own",
)
"""What trains in fp32, fp16 and integers, a whole student, an agent in 8 bits: their kernels take longer to compile."""


@pytest.mark.parametrize(
    "tests", [OFTEN, pytest.param(SELDOM, marks=pytest.mark.slow)], ids=["often", "seldom"]
)
def test_the_kernels_are_right_with_avx2_only(tests):
    if vector_lanes() == 8:
        pytest.skip("this processor has AVX2 only, and does it in every test")
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(root / test) for test in tests)],
        env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
