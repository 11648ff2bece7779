#!/bin/sh
# The simulators on one GPU, about three minutes: sh benchmarks/simulators/gpu.sh PEERS OUTPUT
#
# For a machine where nothing can be installed. PEERS/site has pfl and what it imports, unpacked from wheels;
# PEERS/fallback takes SciPy's place where there is none (pfl imports it for privacy accounting, not called here).
# FEDGMR_DATA names the directory with cifar10.npz; without it the images are synthetic. OUTPUT receives the table and the CSV.
set -u
cd "$(dirname "$0")/../.."
peers=$1 output=$2 python=${PYTHON:-python3}
PYTHONPATH=$PWD:$peers/site
"$python" -c "import scipy.stats" 2>/dev/null || PYTHONPATH=$PYTHONPATH:$peers/fallback
export PYTHONPATH
exec "$python" benchmarks/simulators.py --device cuda --pfl "$python" --repeats "${REPEATS:-6}" \
    --csv "$output/simulators_gpu.csv" >"$output/simulators_gpu.txt" 2>&1
