# SPDX-License-Identifier: Apache-2.0
# A soak in pieces: each goes on with the next seed and the count of the one before, and one that fails
# moves nothing. Needs PROGRAM and SCRATCH.
cmake_minimum_required(VERSION 3.23)

set(state ${SCRATCH}/pieces.state)
file(MAKE_DIRECTORY ${SCRATCH})
file(REMOVE ${state})

# Its output in OUT.
function(run_piece out status)
  execute_process(COMMAND ${PROGRAM} --virtual --soak --streams 8 --state ${state} ${ARGN}
    OUTPUT_VARIABLE said ERROR_VARIABLE complaint RESULT_VARIABLE result)
  if(NOT result EQUAL status)
    message(FATAL_ERROR "status ${result}, not ${status}:\n${said}${complaint}")
  endif()
  set(${out} "${said}${complaint}" PARENT_SCOPE)
endfunction()

function(expect_state pattern)
  file(READ ${state} found)
  if(NOT found MATCHES "${pattern}")
    message(FATAL_ERROR "the state is not as ${pattern}:\n${found}")
  endif()
endfunction()

function(expect_said text pattern)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "no ${pattern} in\n${text}")
  endif()
endfunction()

run_piece(first 0 --cycles 20 --seed 70)
expect_said("${first}" "piece 1, after 0 operations.*seed 70")
expect_state("pieces 1\nseed 71\noperations ([0-9]+)\n")
file(READ ${state} before)
string(REGEX REPLACE ".*operations ([0-9]+).*" "\\1" n_first "${before}")

# Nothing was recycled: that is a failure.
run_piece(failed 1 --cycles 1 --limit 1048576)
file(READ ${state} after)
if(NOT after STREQUAL before)
  message(FATAL_ERROR "a piece that failed counts:\n${after}")
endif()

run_piece(second 0 --cycles 20)
expect_said("${second}" "piece 2, after ${n_first} operations.*seed 71")
string(REGEX MATCH "([0-9]+) operations:" sample "${second}")
if(NOT CMAKE_MATCH_1 GREATER n_first)
  message(FATAL_ERROR "the count begins again: ${sample} after ${n_first}")
endif()
expect_state("pieces 2\nseed 72\n")

set(good ${state})
set(state ${SCRATCH}/nowhere/pieces.state)
run_piece(homeless 1 --cycles 20)
expect_said("${homeless}" "cannot be written")
if(homeless MATCHES "operations:")
  message(FATAL_ERROR "a piece ran whose end cannot be kept:\n${homeless}")
endif()

set(state ${good})
file(WRITE ${state} "pieces two\n")
run_piece(broken 1 --cycles 1)
expect_said("${broken}" "does not say where a run ended")
