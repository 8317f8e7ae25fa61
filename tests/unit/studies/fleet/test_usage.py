"""Utilisation and power of jobs out of Prometheus' answers, joined by job number or pod."""

import json

import pytest

from windtunnel.errors import InputFileError
from windtunnel.questions.asked.fleet.further import FleetUsage
from windtunnel.studies.fleet.jobs.usage import answer_usage

JOBS = "job,submit_s,gpus,duration_s\n4711,0,2,3600\nlab/train,0,4,7200\nlab/train-big,0,1,3600\nsilent,0,8,3600\n"


def series(metric, values, **labels):
    samples = [[1767225600 + 60 * at, str(value)] for at, value in enumerate(values)]
    return {"metric": {"__name__": metric, **labels}, "values": samples}


def asked(folder, *entries):
    (folder / "jobs.csv").write_text(JOBS)
    answer = {"status": "success", "data": {"resultType": "matrix", "result": list(entries)}}
    (folder / "usage.json").write_text(json.dumps(answer))
    return answer_usage(FleetUsage(trace=str(folder / "jobs.csv"), usage=str(folder / "usage.json")))


def test_series_are_joined_by_number_and_by_pod(tmp_path):
    use = asked(
        tmp_path,
        series("DCGM_FI_DEV_GPU_UTIL", [100, 50], hpc_job="4711", gpu="0"),
        series("DCGM_FI_DEV_GPU_UTIL", [0, 50], hpc_job="4711", gpu="1"),
        series("DCGM_FI_DEV_POWER_USAGE", [500, 300], hpc_job="4711", gpu="0"),
        series("DCGM_FI_DEV_GPU_UTIL", [25], namespace="lab", pod="train-worker-0-x7"),
        series(
            "DCGM_FI_DEV_GPU_UTIL", [80], exported_namespace="lab", exported_pod="train-big-0", pod="dcgm-exporter-1"
        ),
        series("DCGM_FI_DEV_GPU_UTIL", [9], namespace="lab", pod="other-0"),
        series("up", [1], hpc_job="4711"),
    )
    assert [(row.job, row.utilisation, row.gpu_hours, row.watts) for row in use.jobs] == [
        ("lab/train", 0.25, 8.0, None),
        ("4711", 0.5, 2.0, 400.0),
        ("lab/train-big", 0.8, 1.0, None),
    ]
    assert use.unused_gpu_hours == pytest.approx(6.0 + 1.0 + 0.2)
    assert use.utilisation == pytest.approx(1 - 7.2 / 11)
    assert use.energy_kwh is None  # not of every job
    assert use.unmeasured == 1
    assert use.warnings == (f"series of no job of {tmp_path}/jobs.csv, left out: 1",)


def test_what_says_most_counts(tmp_path):
    use = asked(
        tmp_path,
        series("DCGM_FI_DEV_GPU_UTIL", [100], hpc_job="4711"),
        series("DCGM_FI_PROF_SM_ACTIVE", [0.3, 0.5], hpc_job="4711"),
        series("DCGM_FI_DEV_POWER_USAGE", [400], hpc_job="4711"),
    )
    assert (use.measure, use.jobs[0].utilisation, use.energy_kwh) == ("DCGM_FI_PROF_SM_ACTIVE", 0.4, 0.8)


def test_each_job_has_the_measure_that_its_gpus_tell(tmp_path):
    use = asked(
        tmp_path,
        series("DCGM_FI_PROF_SM_ACTIVE", [0.3], hpc_job="4711"),
        series("GPU_GFX_ACTIVITY", [60], namespace="lab", pod="train-0"),
    )
    assert {row.job: row.utilisation for row in use.jobs} == {"4711": 0.3, "lab/train": 0.6}
    assert use.measure == "DCGM_FI_PROF_SM_ACTIVE, GPU_GFX_ACTIVITY"


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ([], "holds no series"),
        ([series("up", [1], hpc_job="4711")], "has none of DCGM_FI_PROF_SM_ACTIVE"),
        ([series("DCGM_FI_DEV_GPU_UTIL", [5], hpc_job="9")], "has none of"),
        ([{"metric": "x", "values": 3}], "has none of"),
        ([series("DCGM_FI_DEV_GPU_UTIL", ["NaN", "+Inf", "1e308"], hpc_job="4711")], "has none of"),
    ],
)
def test_what_cannot_be_joined_is_one_error(tmp_path, entries, match):
    with pytest.raises(InputFileError, match=match):
        asked(tmp_path, *entries)
