# SPDX-License-Identifier: Apache-2.0
# The sharded training step: one object a run, a timeline, and the trace that is kept in the tree is
# the one that the generator writes.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

bench(text generate fsdp --device virtual --json --layers 4 --hidden 512 --steps 2 --runs 2
  --contender expandable,classic --timeline fsdp.csv)
expect_lines("${text}" 4 variant run live_peak_bytes reserved_peak_bytes efficiency elapsed_us
  steady_us overlap gap_mean_us gap_most_us stream_syncs event_waits wrong_tags violations)
file(STRINGS ${SCRATCH}/fsdp.csv rows REGEX "^fsdp,classic,")
if(NOT rows)
  message(SEND_ERROR "no row of classic in the timeline")
endif()

bench(ignored generate fsdp --steps 12 --write-trace new.trace)
bench(ignored convert new.trace new_again.trace)
bench(ignored convert ${ROOT}/bench/traces/synthetic/fsdp.trace.gz kept.trace)
file(SHA256 ${SCRATCH}/new_again.trace new)
file(SHA256 ${SCRATCH}/kept.trace kept)
if(NOT new STREQUAL kept)
  message(SEND_ERROR "bench/traces/synthetic/fsdp.trace.gz is not what generate fsdp --steps 12 writes")
endif()
bench(text replay ${ROOT}/bench/traces/synthetic/fsdp.trace.gz --json --device virtual
  --contender ductile,expandable,classic --lag 100)
expect_lines("${text}" 3 ${replay_keys})
