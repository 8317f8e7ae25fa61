#!/bin/bash
# sbatch that predicts first: examples/submit_hook.sh h100-sxm:512 train.sh [sbatch arguments]
# A job that does not fit, or that one change would make more than a tenth quicker, is not submitted.
set -u
cluster=$1 launch=$2
shift 2
if windtunnel check "$launch" --cluster "$cluster" --fail-if "${WINDTUNNEL_RULES:-oom,slower=10%}"; then
    exec sbatch "$@" "$launch"
fi
echo "not submitted; WINDTUNNEL_RULES=oom asks for less" >&2
exit 1
