#!/bin/sh
# A first look with CmdStan, from the shell: what `./model sample` wrote is calibrated for clusters.
#
#   sh first_cmdstan.sh chain-1.csv chain-2.csv pupils.csv
#
# The program has `vector[n] log_lik` in its generated quantities. The last argument is the table of
# the rows, which names the school of each.
set -e
for rows; do :; done  # the last argument
chains=""
while [ $# -gt 1 ]; do chains="$chains $1"; shift; done

# shellcheck disable=SC2086  # several files
etafree calibrate $chains --clusters "$rows:school" --var a --var b \
    --csv draws.csv --summary table.csv --report page.html

echo "intervals:"
cut -d , -f 1,2,3,6,7 table.csv

# The prediction at x = 2, from the calibrated draws.
python3 - <<'PREDICTION'
import numpy as np
import pandas as pd

draws = pd.read_csv("draws.csv")
low, high = np.quantile(draws["a"] + 2 * draws["b"], [0.025, 0.975])
print(f"at x = 2: {low:.2f} to {high:.2f}")
PREDICTION
