"""Give example arguments of every compiled function that Python calls, to compile it for their types."""

import numpy as np

from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.state import Requests, Rules, new_world
from tokonomics.serving.step_table import StepTable


def arguments() -> dict[str, tuple[object, ...]]:
    """Return the arguments of a call, by function; the values do not matter."""
    table = _table()
    world, indices = new_world(_requests(), table, _rules(), FleetSettings(), 0), np.zeros(1, np.int64)
    return {
        "serve_until": (world, 1, 1.0, True),
        "_route_all": (world, indices, 1.0),
        "never_heard": (world, indices),
        "_lose_step": (world, 0, 1.0),
        "drain_if_empty": (world, 0, 1.0),
        "empty_cache": (world, 0),
        "step_s": (table, 1, 1.0, 1, 1, 1.0),
        "gpu_s": (table, 1, 1.0, 1, 1, 1.0),
        "launching_s": (table, 1, 1, 1),
        "after_s": (table, 1, 1),
        "run_s": (table, 1, 1.0, 1),
        "steps_until": (table, 1, 1.0, 1, 1.0),
    }


def _requests() -> Requests:
    one, count = np.zeros(1), np.zeros(1, np.int32)
    return Requests(
        arrival_s=one,
        input_tokens=count,
        output_tokens=count,
        urgency=count,
        deadline_s=one,
        unit_ids=np.zeros(0, np.int32),
        unit_starts=np.zeros(2, np.int64),
        unit_ends=np.zeros(0, np.int32),
        prefilled=False,
    )


def _rules() -> Rules:
    return Rules(
        max_sequences=1,
        max_batched_tokens=1,
        mixes=True,
        chunks=True,
        reserves=False,
        block_tokens=1,
        kv_blocks=1,
        fixed_blocks=0,
        caches=False,
        max_context=1,
    )


def _table() -> StepTable:
    line, plane = np.zeros(1), np.zeros((1, 1))
    return StepTable(
        tokens_s=line,
        shared_s=line,
        head_s=line,
        decode_s=plane,
        attention_s=plane,
        beside_s=line,
        cool_s=line,
        prompt_log_s=np.zeros((1, 1, 1)),
        launch_s=line,
        launch_prompt_s=0.0,
        host_step_s=0.0,
        host_sequence_s=0.0,
        ahead=False,
        request_s=0.0,
        token_s=0.0,
        reach_s=0.0,
        answer_s=0.0,
        stages=1,
        groups=1,
        aligned=False,
        round_tokens=1.0,
    )
