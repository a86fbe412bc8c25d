#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torchtitan on Ductile: DUCTILE_TORCH in the environment of torchrun is all. Run it in torchtitan's
# sources, where tests/assets has a tokenizer and texts.
set -euo pipefail

export DUCTILE_TORCH=1
exec torchrun --nproc-per-node "${NGPU:-1}" "${TRAIN:--mtorchtitan.train}" \
    --module llama3 --config llama3_debugmodel --training.steps 3 "$@"
