# SPDX-License-Identifier: Apache-2.0
# The loop runs under every contender of the virtual GPU, and so does the trace it writes, to the
# same peaks.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

bench(ignored generate vary ${small_loop} --write-trace small.trace)
bench(loop generate vary ${small_loop} --json --contender ductile,expandable,classic,cumemalloc)
expect_lines("${loop}" 4 ${replay_keys})
bench(replayed replay small.trace --json --device virtual
  --contender ductile,expandable,classic,cumemalloc)
expect_lines("${replayed}" 4 ${replay_keys})

string(REGEX MATCHALL "\"(live|reserved)_peak_bytes\":[0-9]+" peaks_of_loop "${loop}")
string(REGEX MATCHALL "\"(live|reserved)_peak_bytes\":[0-9]+" peaks_of_trace "${replayed}")
if(NOT peaks_of_loop STREQUAL peaks_of_trace)
  message(SEND_ERROR "the loop: ${peaks_of_loop}\nits trace: ${peaks_of_trace}")
endif()

# The trace begins with the command that makes it again.
file(STRINGS ${SCRATCH}/small.trace first LIMIT_COUNT 1)
string(REGEX REPLACE "^# ductile-bench " "" again "${first}")
separate_arguments(again)
bench(ignored ${again} --write-trace again.trace)
file(SHA256 ${SCRATCH}/small.trace small)
file(SHA256 ${SCRATCH}/again.trace again)
if(NOT small STREQUAL again)
  message(SEND_ERROR "'${first}' does not make its trace again")
endif()
