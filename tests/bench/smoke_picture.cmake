# SPDX-License-Identifier: Apache-2.0
# The picture that bench/run ends with.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

set(python "")
foreach(candidate ${PYTHON} /usr/bin/python3)
  execute_process(COMMAND ${candidate} -c "import matplotlib" RESULT_VARIABLE status
    OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0)
    set(python ${candidate})
  endif()
endforeach()
if(NOT python)
  message("skipped: no Python here has matplotlib")
  return()
endif()

bench(ignored varybatch ${small_loop} --contender ductile --write-trace ${SCRATCH}/small.trace)
bench(ignored replay small.trace --device virtual --timeline timeline.csv)
file(REMOVE ${SCRATCH}/timeline.png)
execute_process(COMMAND ${python} ${ROOT}/bench/plot.py timeline.csv timeline.png
  WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)
file(READ ${SCRATCH}/timeline.png head LIMIT 4 HEX)
if(NOT head STREQUAL "89504e47")
  message(FATAL_ERROR "timeline.png is no picture")
endif()
