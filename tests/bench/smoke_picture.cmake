# SPDX-License-Identifier: Apache-2.0
# The picture that bench/run ends with.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

# Where nothing can draw, the script says so in one line.
execute_process(COMMAND ${PYTHON} -c "import sys; sys.modules['matplotlib'] = None; import plot; plot.run('', None)" a b
  WORKING_DIRECTORY ${ROOT}/bench RESULT_VARIABLE status ERROR_VARIABLE errors)
if(NOT status EQUAL 1 OR NOT errors MATCHES "^[^\n]* has no matplotlib\n$")
  message(FATAL_ERROR "without matplotlib: ${status}\n${errors}")
endif()

find_matplotlib(python)
if(NOT python)
  message("skipped: no Python here has matplotlib")
  return()
endif()

bench(ignored generate vary ${small_loop} --write-trace ${SCRATCH}/small.trace)
bench(ignored replay small.trace --device virtual --timeline timeline.csv)
expect_picture(${python} timeline.csv timeline.svg
  small "[0-9.]+ GiB Ductile" "[0-9.]+ GiB native" "[0-9.]+ GiB live")
